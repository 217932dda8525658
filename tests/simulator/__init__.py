"""Simulates a whole swarm in virtual time: the real node and coordinator on a synthetic network, disk and clock."""
