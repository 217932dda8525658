"""The lines of a node to its peers, in a gossip run."""
