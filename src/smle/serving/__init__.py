"""Serving: a model in front, a reader of tables and a certified head, as one object."""
