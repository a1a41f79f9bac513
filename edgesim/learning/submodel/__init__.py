"""Sub-models: networks with a part left out."""
