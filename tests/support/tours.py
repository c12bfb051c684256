"""Pages that are typed as they stand: every command in a block `sh`, in its order."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from .commands import run
from .project import ROOT


def typed(page: Path, folder: Path, *, instead: tuple[str, str]) -> dict[str, str]:
    """Run the commands of a page in a folder, which is the current one; return what those of smle said.

    `mkdir NAME && cd NAME` changes the current folder.
    `instead`: a number of rows on the page, and a smaller one. `# exit code N` behind a command is what it ends with.
    """
    shutil.copytree(ROOT / "examples", folder / "examples")
    text = page.read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    said = {}
    for line in lines:
        command, _, wanted = line.partition("   # exit code ")
        place = re.fullmatch(r"mkdir (\S+) && cd \1", command)
        if place:
            Path(place[1]).mkdir()
            os.chdir(place[1])
            continue
        if command.startswith("smle "):
            result = run(*shlex.split(command)[1:])
            assert result.exit_code == int(wanted or 0), f"{line}\n{result.output}"
            said[command] = " ".join(result.output.split())
        else:
            command = command.replace("python ", f"{shlex.quote(sys.executable)} ").replace(*instead)
            subprocess.run(["sh", "-c", command], check=True, timeout=120)
    return said
