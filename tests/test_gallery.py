"""The gallery: every door runs, and prints what the page says."""

import contextlib
import io
import re
import shlex
import warnings
from pathlib import Path

from smle.demo import BRAKING_RULES, braking_data
from support.commands import run

PAGE = Path(__file__).parents[1] / "docs" / "gallery.md"
BLOCK = re.compile(r"^```(python|text|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_every_door_prints_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    braking_data(rows=300).to_csv("braking.csv", index=False)
    Path("braking.yaml").write_text(BRAKING_RULES, encoding="utf-8")
    names, printed, compared = {}, io.StringIO(), 0
    for kind, body in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(compile(body, str(PAGE), "exec"), names)
        elif kind == "text":
            assert printed.getvalue() == body
            compared += 1
        else:
            for line in body.splitlines():
                done = run(*shlex.split(line)[1:])
                assert done.exit_code == 0, (line, done.output)
    assert compared == 6
