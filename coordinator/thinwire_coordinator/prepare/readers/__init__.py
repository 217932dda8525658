"""Readers of the formats in which documents are stored. Each format is one file."""
