"""Differential privacy: bounds on the information about devices in the results that a server publishes."""
