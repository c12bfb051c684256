"""Advice on rules: contradictions, what they cost on data, what changed between two versions."""
