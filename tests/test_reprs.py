"""What objects say about themselves: short texts, a table per rule, HTML for notebooks, all of it escaped."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from smle import Specification, diagnose
from smle.heads.box.proof.verdict import Holds, Multipliers, Obligation, Unknown, Verdicts
from smle.heads.rules.rules_author import certify_rules
from smle.rules import Number, NumericInput, rule

RULES = 30


@pytest.fixture(scope="module")
def bank() -> Specification:
    lines = [f"  - {{name: rule {i}, when: x{i % 5} <= {i}, then: 0 <= y{i % 7} <= {100 + i}}}" for i in range(RULES)]
    inputs, outputs = (", ".join(f"x{i}: [0, 50]" for i in range(5)), ", ".join(f"y{i}" for i in range(7)))
    head = f"inputs: {{{inputs}}}\noutputs: [{outputs}]\n"
    return Specification.from_yaml(head + "rules:\n" + "\n".join(lines) + "\n  - {name: '<b>', then: y0 <= 500}\n")


def test_a_certificate_prints_a_line_per_rule(bank: Specification) -> None:
    certificate = certify_rules(bank)
    printed = str(certificate)
    assert len(printed.splitlines()) <= RULES + 10
    assert "rule 7" in printed
    assert "clip" in printed
    assert len(certificate.details().splitlines()) > len(certificate.proved) > RULES
    assert all(item.sentence in certificate.details() for item in certificate.proved)
    assert repr(certificate).startswith("Certificate(")
    assert len(repr(certificate)) < 60
    assert "<b>rule" not in certificate._repr_html_()
    assert "&lt;b&gt;" in certificate._repr_html_()


def test_rules_print_as_a_table(bank: Specification) -> None:
    printed = str(bank)
    assert printed.startswith("31 rules about 5 inputs (x0, x1, x2, x3, x4) and 7 outputs (y0, ")
    assert len(printed.splitlines()) == RULES + 5
    assert bank._repr_html_().count("<tr>") == RULES + 2
    assert "&lt;b&gt;" in bank._repr_html_()
    assert len(repr(bank)) < 200
    many = Specification.build(
        inputs=[NumericInput("x", Fraction(0), Fraction(1))],
        outputs=[Number("y")],
        rules=[rule(f"r{i}", then=f"y <= {i}") for i in range(80)],
    )
    assert "... 30 more" in str(many)


def test_a_diagnosis_says_in_one_line_what_was_found(bank: Specification) -> None:
    found = diagnose(bank)
    assert repr(found) == f"Diagnosis(the rules can hold together: {len(found.findings)} findings, 0 severe)"
    assert str(found) == found.table()
    clash = diagnose(
        "inputs: {x: [0, 1]}\noutputs: [y]\nrules:\n- {name: p, then: y <= 1}\n- {name: q, then: y >= 2}\n"
    )
    assert repr(clash).startswith("Diagnosis(contradictory: 1 findings")
    assert "!! Rules" in clash._repr_html_()


def test_verdicts_print_a_line_per_rule() -> None:
    proof = Multipliers(np.ones(1))
    items = [(Obligation(0, 0, c, None), Holds(0.5 + c, proof)) for c in range(40)]
    verdicts = Verdicts((*items, (Obligation(0, 1, 0, None), Unknown("gave up"))))
    assert repr(verdicts) == "Verdicts(40 of 41 proved, smallest margin -inf)"
    assert str(verdicts).splitlines()[-2:] == ["0     40 of 40  0.5", "1     0 of 1    unknown"]
    assert verdicts._repr_html_().count("<tr>") == 3
