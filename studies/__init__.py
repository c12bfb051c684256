"""Studies: benches, attacks, fuzzing, the paper's experiments. Run from a clone: `python -m studies --help`."""
