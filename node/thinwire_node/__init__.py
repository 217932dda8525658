"""Runs forward and backward on a volunteer's machine, keeps its momentum there, and sends the largest of it."""
