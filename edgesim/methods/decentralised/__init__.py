"""What methods without a server share: exchanges of models among peers, dense and sparse."""
