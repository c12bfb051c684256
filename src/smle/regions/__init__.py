"""Finds which rules apply together, and where: rows, guard, cells, and the rules that bind in each."""
