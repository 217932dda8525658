"""The node's side of a run whose exchange is `gossip`."""
