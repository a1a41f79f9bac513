"""Methods beside other simulators' implementations of them, on equal first weights and equal batches."""
