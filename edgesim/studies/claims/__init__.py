"""Claims of papers: what each says, which runs test it, and what they say of it."""
