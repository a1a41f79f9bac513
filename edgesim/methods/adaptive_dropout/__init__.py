"""Federated adaptive dropout of FedAD and FedDHAD: which channels a device leaves out, and at which rate."""
