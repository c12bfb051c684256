"""The box in torch: networks, bounds, heads as they are deployed, and their verdicts."""

import smle.networks  # noqa: F401  # first: where torch is missing it says what to install
