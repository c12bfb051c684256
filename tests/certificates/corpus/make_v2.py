"""Writes the corpus of version 2: `python tests/certificates/corpus/make_v2.py`, from the root of the repository.

Version 2 is not released: its folders are written anew when its statement changes. Folders of a released version are
never written again: they show that files from then stay readable and proved. `expected.json` holds the number of
statements and the smallest margin.
"""

import json
import sys
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2])]

from support.builder import CASES, case  # noqa: E402  (the path is set above)
from support.relaxation_cases import MADE  # noqa: E402
from support.rules_cases import RULES_CASES, rules_case  # noqa: E402

SETS = {
    "v2": {name: partial(case, name) for name in CASES},
    "v2-networks": MADE,
    "v2-rules": {name: partial(rules_case, name) for name in RULES_CASES},
}

if __name__ == "__main__":
    for folder, made in SETS.items():
        expected = {}
        for name, make in made.items():
            package, place = make(), name.replace(" ", "-")
            proved = package.check()
            package.write(HERE / folder / place)
            expected[place] = {"statements": len(proved), "least_margin": str(min(item.margin for item in proved))}
        (HERE / folder / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
