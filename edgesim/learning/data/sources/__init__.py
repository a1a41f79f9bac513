"""One file per family of data sources; each lists its own in PLUGINS and has `load() -> Dataset`."""
