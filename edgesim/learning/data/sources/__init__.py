"""One file per family of data sources; each lists its own in PARTS and has `load() -> Dataset`."""
