"""What hostile nodes do to a run, and what the aggregation rules and the trust in nodes do against them."""
