"""How a job gets from its dispatch to its end, over links of its own, over shared links, or among peers."""
