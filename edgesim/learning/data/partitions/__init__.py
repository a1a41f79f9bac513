"""One file per family of partitions; each lists its own in PARTS and has `split(...) -> Split`."""
