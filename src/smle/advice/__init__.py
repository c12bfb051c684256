"""Advice on rules: whether they contradict each other, what they cost on data, what changed between two versions."""
