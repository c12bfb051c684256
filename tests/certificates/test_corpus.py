"""Files of every released version stay readable and proved: they were written once and are never written again."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

import smle_check

CORPUS = Path(__file__).parent / "corpus"
FOLDERS = sorted(path.parent for path in CORPUS.glob("v*/*/certificate.json"))


def test_corpus_is_there_and_small():
    assert len(FOLDERS) >= 10
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 200_000


@pytest.mark.parametrize("folder", FOLDERS, ids=[f"{f.parent.name}/{f.name}" for f in FOLDERS])
def test_old_files_are_proved(folder):
    expected = json.loads((folder.parent / "expected.json").read_text())[folder.name]
    proved = smle_check.check_certificate(*smle_check.read_folder(str(folder)))
    assert len(proved) == expected["statements"]
    # Intermediate terms may be rounded up a little more or less; the margin itself is part of what was released.
    assert abs(min(item.margin for item in proved) - Fraction(expected["least_margin"])) < Fraction(1, 2**100)
