"""The table of heads. A new head is a folder here, a file in `smle_check/heads`, and a line in both tables."""

from __future__ import annotations

import numpy.typing as npt

from smle.certificates.document import Certificate
from smle.errors import CertificateError
from smle.heads.box.box_head import BOX
from smle.heads.contract import HeadKind, HeadProgram
from smle.heads.grid.grid_head import GRID
from smle.heads.rules.rules_head import RULES
from smle.rules import Specification

__all__ = ["HEADS", "certify_head", "head_for", "head_of", "program_of"]

HEADS: dict[str, HeadKind] = {"box": BOX, "rules": RULES, "grid": GRID}


def head_for(spec: Specification) -> str:
    """Return the name of the head to use behind any model under these rules."""
    return next(name for name in reversed(HEADS) if HEADS[name].suits(spec))


def head_of(certificate: Certificate) -> HeadKind:
    """Return the head of a certificate. Raises CertificateError if the kind is unknown."""
    if certificate.kind not in HEADS:
        raise CertificateError(f"certificate: unknown kind of head '{certificate.kind[:20]}'.")
    return HEADS[certificate.kind]


def program_of(certificate: Certificate) -> HeadProgram:
    """Return the program of a certificate, made on first use and then shared."""
    program: HeadProgram | None = certificate.made.get("program")
    if program is None:
        program = certificate.made["program"] = head_of(certificate).program(certificate)
    return program


def certify_head(
    spec: Specification,
    *,
    default: npt.ArrayLike | None = None,
    scale: npt.ArrayLike | None = None,
    files: dict[str, bytes] | None = None,
) -> Certificate:
    """Certify the head that suits any model: the grid head for steps and equalities, else the head of rules.

    Takes the arguments of `certify_rules`, and raises its errors.
    """
    return HEADS[head_for(spec)].certify(spec, default=default, scale=scale, files=files)
