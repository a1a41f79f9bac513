"""How files are read, whatever is in them, and written so that they are there as a whole or not at all."""
