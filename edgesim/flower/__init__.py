"""Flower apps under the simulated clock. Nothing here is loaded, and flwr least of all, unless a scenario names one."""
