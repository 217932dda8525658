"""What to take, why, and where that would change."""
