"""Convergence study: how close methods with low bandwidth get to AdamW, on the same model, text, order and tokens."""
