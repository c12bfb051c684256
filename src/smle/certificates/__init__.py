"""Certificates: their format, their agreement with rules, and how they are issued."""
