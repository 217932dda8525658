"""Attacks on a real coordinator on loopback, beside three honest nodes. `make abuse` measures what they cost."""
