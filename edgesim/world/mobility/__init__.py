"""Devices that move from one edge server to another: parts of the kind "mobility"."""
