"""What several tests need: a small contract, synthetic votes, and real processes."""
