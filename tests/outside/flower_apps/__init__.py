"""Public Flower apps, run unmodified under edgesim and compared with Flower's own in-process simulation."""
