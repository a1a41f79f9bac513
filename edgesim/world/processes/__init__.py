"""Processes over time that models of the world are made of."""
