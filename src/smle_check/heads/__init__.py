"""The kinds of heads, each with its worst case."""
