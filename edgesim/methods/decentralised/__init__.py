"""Base of methods without a server: exchanges of models among peers, dense and sparse."""
