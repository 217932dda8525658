"""A whole swarm under virtual time: the real node and the real coordinator above a synthetic network, disk and
clock."""
