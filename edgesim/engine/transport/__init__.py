"""Transports of jobs from dispatch to end: over dedicated links, over shared links, or among peers."""
