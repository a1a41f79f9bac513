"""A simulation of a scenario: assembled, run, recorded, estimated."""
