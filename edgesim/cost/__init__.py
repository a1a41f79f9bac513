"""The price list of a model: FLOPs, bytes and memory of each layer, and the models that price work by it."""
