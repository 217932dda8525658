"""The formulas: how long a message, a node's computing and an iteration of gossip take. No clock, disk or socket."""
