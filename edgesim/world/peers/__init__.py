"""Graphs of who hears whom when devices exchange models: one module a kind, listed in its PLUGINS."""
