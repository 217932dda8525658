"""Measures what a prediction needs: this machine's computing, and the line to another machine."""
