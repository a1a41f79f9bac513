"""Server optimisers, which turn the move of an aggregation into a step. A scenario names one as `server_optimizer`."""
