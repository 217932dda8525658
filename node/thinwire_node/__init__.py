"""Runs forward and backward on a volunteer's machine, keeps its momentum there, and sends its largest parts as votes."""
