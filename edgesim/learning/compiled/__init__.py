"""Compiled training steps."""
