"""Workload W1 as a Flower app. It finds the modules of the folder benchmarks by PYTHONPATH."""
