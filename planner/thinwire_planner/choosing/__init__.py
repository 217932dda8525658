"""Takes a method, gives the reasons, and finds where the choice would change."""
