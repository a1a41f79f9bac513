"""Costs of a run in money and carbon: prices by zone and hour, and the ledger of both."""
