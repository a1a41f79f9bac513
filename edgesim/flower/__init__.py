"""Apps of Flower (flwr), unchanged, under the simulated clock."""
