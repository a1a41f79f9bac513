"""Weights of updates in a mean that several methods share."""
