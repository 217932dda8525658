"""Measures hostile nodes against the aggregation rules and the trust in nodes."""
