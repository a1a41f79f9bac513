"""What may fail during a run: one module a family, listed in its PARTS. A scenario may have several."""
