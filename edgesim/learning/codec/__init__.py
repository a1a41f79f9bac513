"""Encodings of what crosses a link."""
