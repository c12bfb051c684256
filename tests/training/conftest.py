from __future__ import annotations

import sys
from pathlib import Path

# The helpers of tests/nn serve here as well.
sys.path.insert(0, str(Path(__file__).parent.parent / "nn"))
