"""Fuzzing of what reads files: `python -m studies fuzz TARGET --seconds N`. Imports nothing of smle by itself.

A target reads bytes and raises `Defect` if something came out that is not documented: another exception than the
documented ones, or an accepted input that means something else than was proved. Seeds are valid files. What was found
once lies in tests/studies/corpus and is replayed by the ordinary tests.
"""
