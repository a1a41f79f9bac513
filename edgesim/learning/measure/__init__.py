"""Measures a network's cost profile with PyTorch: the only part of `cost` that needs torch."""
