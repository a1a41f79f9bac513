"""Users' own code under the simulated clock: their training loops, and what their code costs."""
