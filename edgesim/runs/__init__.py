"""A simulation put together from a scenario: assembled, run, recorded, estimated."""
