"""Execution of a run: the graph of values, the backends that compute them, and the cache of results."""
