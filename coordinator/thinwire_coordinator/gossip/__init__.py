"""The coordinator of a gossip run: the directory of its members, and their beats."""
