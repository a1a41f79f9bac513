"""How transfers share links: one module a discipline, listed in its PLUGINS; what they give is in base.py."""
