"""Failures during a run: one module for each family, listed in its PLUGINS. A scenario may have several."""
