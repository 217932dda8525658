"""`make bench`: how fast and how small, beside honest baselines."""
