"""Who chooses the frequency of a CPU: one module a family of governors, listed in its PLUGINS."""
