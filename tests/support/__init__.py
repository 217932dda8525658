"""What several tests need: a small contract, made-up votes, and real processes."""
