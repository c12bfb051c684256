"""Writes the corpus of version 2: `python tests/certificates/corpus/make_v2.py`, from the root of the repository.

Version 2 is not released: its folders are written anew when its statement changes. Folders of a released version are
never written again: they show that files from then stay readable and proved. `expected.json` holds the number of
statements and the smallest margin.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2])]

from support.builder import CASES, case  # noqa: E402  (the path is set above)

if __name__ == "__main__":
    expected = {}
    for name in CASES:
        folder = name.replace(" ", "-")
        package = case(name)
        proved = package.check()
        package.write(HERE / "v2" / folder)
        expected[folder] = {"statements": len(proved), "least_margin": str(min(item.margin for item in proved))}
    (HERE / "v2" / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
