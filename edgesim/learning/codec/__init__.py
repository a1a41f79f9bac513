"""Encodings of messages that cross a link."""
