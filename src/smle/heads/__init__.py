"""Heads, a folder for each kind: what is stated, proved and run. `table.py` lists them."""
