"""Measurement of a network's cost profile with PyTorch."""
