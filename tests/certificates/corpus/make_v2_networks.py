"""Writes the network bounds of version 2: `python tests/certificates/corpus/make_v2_networks.py`, from the root.

Run once, when this part of version 2 was settled; see `make_v2.py`.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2])]

from support.relaxation_cases import MADE  # noqa: E402  (the path is set above)

if __name__ == "__main__":
    expected = {}
    for name, make in MADE.items():
        package = make()
        proved = package.check()
        package.write(HERE / "v2-networks" / name)
        expected[name] = {"statements": len(proved), "least_margin": str(min(item.margin for item in proved))}
    (HERE / "v2-networks" / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
