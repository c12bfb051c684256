"""Large gates pick the input of each comparison, and the region of each rule: small ones in that form answer alike."""

from __future__ import annotations

import numpy as np
import pytest

import smle_check
from smle import Specification
from smle.heads.rules.rules_author import certify_rules
from smle_check.onnx import candidate_nodes, interface, operation_nodes
from support.exported import session
from support.joined import ANSWERS, joined

HEAD = "inputs: {x: [0, 1], k: {categories: [a, b, c, d]}}\noutputs: [p, q]\nrules:\n"
CASES = {
    "limits": "".join(f"  - {{name: r{n}, when: k == {n}, then: {i} <= p <= {i}.5}}\n" for i, n in enumerate("abcd")),
    "whole domain": "  - {name: r, then: p <= 1}\n  - {name: s, when: x < 0.5, then: q >= 0.25}\n",
    "two rows": "  - {name: r, when: x < 0.5 and k == a, then: p <= 1}\n  - {name: s, when: x >= 0.5, then: q <= x}\n",
    "check": "  - {name: r, when: k == b, then: p + q <= x}\n  - {name: s, when: x > 0.3, then: p <= 0 or q <= 2}\n",
    "check and limits": "  - {name: r, then: p <= q}\n  - {name: s, when: k != c, then: -4 <= p <= 4}\n",
}


@pytest.mark.parametrize("monitor", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_both_forms_answer_alike(name, monitor, monkeypatch):
    spec = Specification.from_yaml(HEAD + CASES[name])
    certificate = certify_rules(spec, files={"rules": spec.to_yaml().encode()})
    plain = joined(spec, certificate, monitor=monitor)
    for room in (operation_nodes, candidate_nodes, interface):
        monkeypatch.setattr(room, "FEW", 0)
    other = joined(spec, certificate, monitor=monitor)
    assert smle_check.check_onnx(other.onnx, other.companion).proved
    if plain.onnx != other.onnx:  # a single region may be read off the named inputs in both
        with pytest.raises(smle_check.Rejected):  # the form is prescribed
            smle_check.check_onnx(plain.onnx, plain.companion)
    rng = np.random.default_rng(0)
    n = 300
    edges = np.float32(
        [0.3, 0.5, np.nextafter(np.float32(0.5), np.float32(0)), np.nextafter(np.float32(0.3), 1), -1, 2]
    )
    x = np.where(rng.random(n) < 0.5, rng.choice(edges, n), rng.random(n)).astype(np.float32)
    x[:2] = np.nan, np.inf
    answers = (rng.normal(size=(n, 2)) * 10.0 ** rng.integers(-3, 4, (n, 1))).astype(np.float32)
    answers[rng.random((n, 2)) < 0.05] = np.nan
    feeds = {"x": x[:, None], "k": rng.choice(np.array(list("abcd?"), dtype=object), n)[:, None], ANSWERS: answers}
    found = [session(model.onnx).run(None, feeds) for model in (plain, other)]
    for first, second in zip(*found, strict=True):
        assert first.tobytes() == second.tobytes() if first.dtype != object else (first == second).all()


def test_files_are_in_proportion_to_the_rules():
    """A limit for each of many categories: 21 kB of constants for 200, where matrices took half a megabyte."""
    sizes = []
    for count in (100, 400):
        names = [f"c{i}" for i in range(count)]
        rules = "".join(f"  - {{name: r{i}, when: k == {n}, then: p <= {i}}}\n" for i, n in enumerate(names))
        text = f"inputs: {{x: [0, 1], k: {{categories: [{', '.join(names)}]}}}}\noutputs: [p]\nrules:\n{rules}"
        sizes.append(len(joined(Specification.from_yaml(text)).onnx))
    assert sizes[1] < 5 * sizes[0]
    assert sizes[1] < 150_000
