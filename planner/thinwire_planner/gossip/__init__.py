"""What only the prediction of a gossip run needs."""
