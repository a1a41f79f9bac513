"""Means of updates."""
