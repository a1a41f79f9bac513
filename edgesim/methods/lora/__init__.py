"""Parts that methods of federated low-rank adapters share."""
