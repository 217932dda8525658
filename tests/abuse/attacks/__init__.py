"""The attacks, each a function that goes on until its target's `stop` is set."""
