"""What only a card can decide, run by `python -m bench.card`."""
