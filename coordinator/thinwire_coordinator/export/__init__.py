"""Writes the model of a run in the formats of transformers and peft."""
