"""What a network is trained for: the loss, what a label is, and by which metrics models are compared."""
