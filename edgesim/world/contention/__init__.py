"""Disciplines by which transfers share links: one module each, listed in its PLUGINS; base.py has their interface."""
