"""Measured seconds of real devices, the clocks that are fitted to them, and how far these can be trusted."""
