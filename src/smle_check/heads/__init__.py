"""Heads: what follows the model, and its worst case."""
