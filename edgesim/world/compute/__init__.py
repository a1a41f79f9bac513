"""Computing time of devices: frequency governors and slow-downs."""
