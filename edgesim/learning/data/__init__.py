"""Data sets as tensors, their augmentation, and their partition among devices."""
