"""Pack the checker into one file that runs with Python alone: `python packaging/archive.py smle-check.pyz`."""

import shutil
import sys
import tempfile
import zipapp
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "smle_check"

if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(SOURCE, Path(folder) / "smle_check", ignore=shutil.ignore_patterns("__pycache__"))
        (Path(folder) / "__main__.py").write_text(
            "import sys\n\nfrom smle_check.command import main\n\nsys.exit(main())\n"
        )
        zipapp.create_archive(folder, target, interpreter="/usr/bin/env python3", compressed=True)
