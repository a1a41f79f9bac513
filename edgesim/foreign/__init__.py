"""Users' own code under the simulated clock: what it costs."""
