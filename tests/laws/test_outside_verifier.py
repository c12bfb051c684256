"""Clip lists behind small networks before Marabou, a verifier of others.

It is asked for an input at which an answer breaks a rule by more than its tolerance, for every way in which regions
can be on and off. It can state the network and the clips, with limits that move, in real arithmetic. It cannot state
floats, NaN and infinities, strict rules, or violations as small as a rounding: those are for z3
(`test_outside_judges`). Of checked candidates it could state the check alone, which is rows of linear inequalities.
"""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest

import smle_check
from smle.certificates.document import Certificate, arrays_of
from smle.heads.rules.rules_author import certify_rules
from smle.rules import Specification
from smle_check.heads.clips import STAGES, limits_of

pytestmark = pytest.mark.audit
CLEARLY = 1e-3  # what counts as a violation
RULES = {
    "doses": (
        "inputs: {w: [2, 250], age: [0, 100]}\noutputs: [dose]\nrules:\n"
        "  - {name: by weight, then: 0 <= dose <= 0.05 * w}\n  - {name: cap, then: dose <= 4}\n"
        "  - {name: frail, when: age - 0.1 * w >= 60, then: dose <= 0.02 * w}\n"
    ),
    "ranges": (
        "inputs: {a: [0, 10], b: [-1, 1]}\noutputs: [y]\nrules:\n"
        "  - {name: low, when: a <= 3.3, then: 0.1 <= y <= 0.7 + 0.1 * b}\n"
        "  - {name: high, when: b >= 0.2 and a <= 8, then: y <= 0.5}\n"
    ),
}


@pytest.fixture(scope="module")
def marabou() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # parsers that it does not have
        pytest.importorskip("maraboupy.Marabou", reason="the extra audit has maraboupy")
        from maraboupy import Marabou, MarabouNetwork

        return Marabou, MarabouNetwork


class Question:
    """One network, one list of clips, regions that are on and half-spaces that are left: is a rule broken somewhere?"""

    def __init__(self, marabou: Any, lower: np.ndarray, upper: np.ndarray) -> None:
        self.marabou, module = marabou
        self.net = module.MarabouNetwork()
        self.x = [self.variable(low, high) for low, high in zip(lower, upper, strict=True)]
        self.net.inputVars, self.net.outputVars = [np.array(self.x)], []

    def variable(self, low: float = -1e4, high: float = 1e4) -> int:
        number = int(self.net.getNewVariable())
        self.net.setLowerBound(number, float(low))
        self.net.setUpperBound(number, float(high))
        return number

    def sum(self, terms: dict[int, float], constant: float) -> int:
        """A variable that is a sum of others."""
        result = self.variable()
        self.net.addEquality([*terms, result], [*map(float, terms.values()), -1.0], -float(constant))
        return result

    def relu(self, variable: int) -> int:
        result = self.variable(0.0)
        self.net.addRelu(variable, result)
        return result

    def at_most(self, terms: dict[int, float], bound: float) -> None:
        self.net.addInequality([*terms], [*map(float, terms.values())], float(bound))

    def network(self, rng: np.random.Generator, size: float) -> int:
        """A network with two hidden layers whose answers go beyond the limits."""
        values = self.x
        for width in (4, 4, 1):
            weights = rng.normal(size=(width, len(values))) * (0.1 if values is self.x else 1.0)
            values = [self.sum(dict(zip(values, row, strict=True)), size * rng.normal()) for row in weights]
            values = [self.relu(v) for v in values] if width > 1 else values
        return values[0]

    def holds(self) -> bool:
        """Whether there is such an input."""
        options = self.marabou.createOptions(verbosity=0, timeoutInSeconds=120)
        answer, _, _ = self.net.solve(verbose=False, options=options)
        assert answer in ("sat", "unsat"), answer
        return bool(answer == "sat")


def broken(marabou: Any, certificate: Certificate, *, clips: bool = True) -> set[str]:
    """Return the rules that Marabou breaks."""
    spec = smle_check.StatedSpecification(certificate.document["specification"], certificate.block)
    tensors, limits = arrays_of(certificate.tensors), limits_of(spec)
    lower, upper = (tensors[f"domain.{end}_float64"] for end in ("lower", "upper"))
    regions = sorted({limit.region for limit in limits})
    gated = [region for region in regions if spec.regions[region]]
    found = set()
    for bits in product((True, False), repeat=len(gated)):
        on = {region for region in regions if region not in gated or bits[gated.index(region)]}
        for left in product(*(spec.regions[region] for region in gated if region not in on)):  # a half-space that fails
            for asked in (limit for limit in limits if limit.region in on):
                question = Question(marabou, lower, upper)
                for row in {row for region in on for row in spec.regions[region]}:
                    question.at_most(dict(spec.rows[row].terms), spec.rows[row].bound)
                for row in left:
                    question.at_most({k: -v for k, v in spec.rows[row].terms.items()}, -spec.rows[row].bound)
                y = question.network(np.random.default_rng(0), float(upper.max()) / 100)
                for stage in STAGES if clips else ():
                    own = [limit for limit in limits if limit.stage == stage]
                    for i, limit in enumerate(own):
                        if limit.region not in on:
                            continue
                        slopes = tensors.get(f"clips.{stage}_slope", np.zeros((len(own), len(lower))))[i]
                        # max(y, v) = v + relu(y - v), and min(y, v) = v - relu(v - y)
                        v = question.sum(dict(zip(question.x, slopes, strict=True)), tensors[f"clips.{stage}"][i])
                        beyond = question.relu(question.sum({y: limit.side, v: -limit.side}, 0.0))
                        y = question.sum({v: 1.0, beyond: limit.side}, 0.0)
                side = float(asked.side)  # side * (y - slope.x) <= side * offset - CLEARLY
                terms = {y: side} | {question.x[k]: -side * float(v) for k, v in asked.slope.items()}
                question.at_most(terms, side * float(asked.offset) - CLEARLY)
                if question.holds():
                    found.add(spec.rules[asked.rule].name)
    return found


@pytest.mark.parametrize("name", RULES)
def test_marabou_breaks_no_rule_behind_the_clips(name, marabou):
    certificate = certify_rules(Specification.from_yaml(RULES[name]))
    assert broken(marabou, certificate) == set()


@pytest.mark.parametrize("name", RULES)
def test_marabou_breaks_the_network_alone_and_clips_that_are_moved(name, marabou):
    certificate = certify_rules(Specification.from_yaml(RULES[name]))
    assert broken(marabou, certificate, clips=False)
    tensor = certificate.tensors["clips.constant_upper"]
    moved = np.frombuffer(tensor.data, np.float32) + np.float32(0.05)
    worse = dict(certificate.tensors) | {"clips.constant_upper": tensor._replace(data=moved.tobytes())}
    unchecked = Certificate(certificate.text, certificate.block, worse, certificate.files)
    assert broken(marabou, unchecked) == {{"doses": "cap", "ranges": "high"}[name]}
