"""The coordinator of a run without a centre: the directory of its members, and their beats."""
