"""The largest answer over three neighbouring values of one input."""
