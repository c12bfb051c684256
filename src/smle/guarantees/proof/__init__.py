"""Does it hold: worst cases over the box, rounding errors, verdicts with multipliers."""
