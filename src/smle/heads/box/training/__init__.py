"""Keeps the heads of a box safe in training: Algorithm 2, and the refit."""

import smle.networks  # noqa: F401  # first: where torch is missing it says what to install
