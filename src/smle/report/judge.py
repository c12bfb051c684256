"""Checks a certificate again, in exact arithmetic, while the report is written."""

from __future__ import annotations

import time
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from smle.certificates.agreement import require_same_rules
from smle.certificates.document import Proved
from smle.errors import CertificateError, ModelFormatError, RuleError
from smle.rules import Specification
from smle.storage import ModelRecord, read_record

__all__ = ["NO_RULES", "PROVED", "REJECTED", "Judgement", "judge", "judge_folder"]

PROVED, REJECTED, NO_RULES = "proved", "rejected", "no rules"


@dataclass(frozen=True)
class Judgement:
    """The result of the exact checker.

    * `verdict`: `proved`, `rejected` or `no rules`; `reason`: why it was rejected.
    * `proved`: the statements of the checker, empty unless proved; `seconds`: how long checking took.
    * `spec`: the compiled rules.yaml, or None if it could not be read.
    """

    verdict: str
    reason: str = ""
    proved: tuple[Proved, ...] = ()
    seconds: float = 0.0
    spec: Specification | None = None


def judge(record: ModelRecord) -> Judgement:
    """Check the certificate of a record, and that its rules compile to exactly what was proved."""
    started = time.perf_counter()
    try:
        spec = record.specification
    except RuleError as error:
        return Judgement(REJECTED, f"rules.yaml: {error}")
    if record.certificate is None:
        if spec.rules:
            return Judgement(REJECTED, "The model has rules but no certificate.", spec=spec)
        return Judgement(NO_RULES, spec=spec)
    try:
        proved = record.certificate.check()
        require_same_rules(record.certificate, spec)
    except CertificateError as error:
        return Judgement(REJECTED, str(error), seconds=time.perf_counter() - started, spec=spec)
    return Judgement(PROVED, "", proved, time.perf_counter() - started, spec)


def judge_folder(folder: str | PathLike[str]) -> tuple[ModelRecord | None, Judgement]:
    """Read a model folder and judge it. A folder that cannot be read is rejected, without a record.

    Raises ModelFormatError if it cannot be read and has no certificate.json either.
    """
    try:
        record = read_record(folder)
    except (ModelFormatError, CertificateError) as error:
        if not (Path(folder) / "certificate.json").is_file():
            raise
        return None, Judgement(REJECTED, str(error))
    return record, judge(record)
