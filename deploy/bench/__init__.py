"""How small and how fast, each row beside a baseline measured in the same run: `make bench`."""
