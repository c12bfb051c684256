"""Run the checker: `smle-check MODEL`, `python -m smle_check MODEL`, or this folder or archive itself."""

import os
import sys

if not __package__:  # run as a folder: `python3 -I -S src/smle_check MODEL`
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from smle_check.command import main

if __name__ == "__main__":
    sys.exit(main())
