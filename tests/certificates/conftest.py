"""Makes the helpers of the whole suite (tests/exact_judge.py) importable from here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
