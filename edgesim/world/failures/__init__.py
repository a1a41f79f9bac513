"""What may fail during a run: one module a family, listed in its PLUGINS. A scenario may have several."""
