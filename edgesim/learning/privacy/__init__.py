"""Differential privacy: what is known of devices from what a server publishes."""
