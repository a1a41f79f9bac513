"""Governors of CPU frequencies: one module for each family, listed in its PLUGINS."""
