"""Traces as others publish them, read into the columns of edgesim's own files. Pickles are not read."""
