"""How long a computation takes: frequency governors and slow-downs."""
