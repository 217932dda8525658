"""The exchange `gossip`: a node steps by itself, and mixes its parameters with a few peers."""
