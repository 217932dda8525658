"""Shared test code: a small contract, synthetic votes and real processes."""
