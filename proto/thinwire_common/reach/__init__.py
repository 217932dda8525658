"""Finds a way to a TLS server: over IPv4 or IPv6, directly or through a proxy, and checks who answers."""
