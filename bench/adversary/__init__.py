"""Measures hostile nodes against the vote and the trust in nodes."""
