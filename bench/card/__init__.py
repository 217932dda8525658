"""Measures what only a card can decide: `python -m bench.card`."""
