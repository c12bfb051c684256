"""Heads, one folder per kind: what is stated, proved and run. `table.py` lists them."""
