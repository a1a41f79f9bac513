"""Batteries that a fleet block may have: one module a kind, listed in its PLUGINS."""
