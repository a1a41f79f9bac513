"""Networks of which a part is left out."""
