"""What a server makes of an aggregation's move: optimisers that a scenario names as `server_optimizer`."""
