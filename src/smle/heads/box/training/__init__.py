"""What keeps the heads of a box safe while it is trained: Algorithm 2, and the refit."""

import smle.networks  # noqa: F401  # first: where torch is missing it says what to install
