"""Standbys: their standing, the items that they are sent, and the files that they write."""
