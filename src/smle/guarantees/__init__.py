"""The mathematics: cells, verification, counterexamples, projection. No torch."""
