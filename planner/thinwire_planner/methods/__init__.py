"""The exchanges that are compared. Each module registers its own."""
