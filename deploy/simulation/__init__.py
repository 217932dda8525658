"""A whole swarm under virtual time: the real node and the real coordinator above a made-up network, disk and clock."""
