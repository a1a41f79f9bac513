"""Joint choices of frequency, power and bandwidth: one module for each policy, listed in its PLUGINS."""
