"""Attacks on certified heads: subjects, points, doors, and one campaign that tries all of them."""
