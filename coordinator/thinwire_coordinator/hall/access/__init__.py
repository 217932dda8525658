"""Decides who may join: proofs of identity, invites, sessions and bans. Knows nothing of gRPC."""
