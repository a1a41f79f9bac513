"""One file per family of partitions; each lists its own in PLUGINS and has `split(...) -> Split`."""
