"""The lines of a node to its peers, in a run without a centre."""
