"""Which node stands where: clusters of hosts, and their places on a topology."""
