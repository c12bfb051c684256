"""The box in torch: networks, bounds, deployed heads and their verdicts."""

import smle.networks  # noqa: F401  # first: where torch is missing it says what to install
