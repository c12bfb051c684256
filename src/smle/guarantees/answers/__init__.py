"""Which answers are allowed: membership, and the nearest allowed ones."""
