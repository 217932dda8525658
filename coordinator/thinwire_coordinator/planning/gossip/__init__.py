"""Plans a run of gossip, whose nodes step by themselves and average with peers."""
