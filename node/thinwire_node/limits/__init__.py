"""The limits that a volunteer sets, and what holds them."""
