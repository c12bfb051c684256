"""Grid heads: what a small document may ask for is bounded, and numbers beyond floats are refused."""

from fractions import Fraction

import numpy as np
import pytest
from test_declared_work import quickly

from smle.heads.grid.grid_author import certify_grid
from smle.rules import Specification
from support.builder import Package, refusal
from support.grid_documents import package as made_by_hand
from support.grid_documents import prescribed

WHOLE = {"lower": "0", "upper": "1", "step": "1"}


def package(inputs, rows, regions, outputs=1, literal=None, **further) -> Package:
    literal = literal or {"y": [[0, "1"]], "x": [], "bound": "0", "strict": False}
    return made_by_hand(inputs, [WHOLE] * outputs, [[literal]], rows=rows, regions=regions, **further)


def test_a_document_made_by_hand_is_accepted():
    row = {"terms": [[0, "1"]], "bound": "0", "strict": False}
    assert prescribed(package([WHOLE] * 2, [row], [[0]])).seal().check()


def test_many_comparisons_of_many_inputs():
    """A matrix of all rows and all inputs is not written down before its size is compared."""
    rows = [{"terms": [[j, "1"]], "bound": "1/2", "strict": False} for j in range(1500)]
    made = package([{**WHOLE, "step": None}] * 1500, rows, [[j] for j in range(1500)])
    small = prescribed(package([WHOLE], [{**rows[0], "bound": "0"}], [[0]])).weights
    made.weights = {**small, **made.weights, "check.outputs": np.ones((1, 1)), "check.steps": np.zeros((1, 1500))}
    assert "gate.rows" in str(quickly(lambda: refusal(made)))


def test_long_answers_in_many_regions():
    """Each region asks for a sum over all outputs, each of which is a sum over all inputs."""
    every = {"y": [[i, "1"] for i in range(200)], "x": [], "bound": "0", "strict": False}
    row = {"terms": [[0, "1"]], "bound": "0", "strict": False}
    made = prescribed(package([WHOLE] * 200, [row], [[0]] * 2000, 200, every, slope=1.0))
    assert "more work" in str(quickly(lambda: refusal(made)))


@pytest.mark.parametrize("step", ["0x1p+1090", "0x1p+128", "0x1p-1090"])
@pytest.mark.parametrize("kind", ["inputs", "outputs"])
def test_steps_beyond_floats_are_refused(kind, step):
    """Also where 0 is the only multiple in the range."""
    row = {"terms": [[0, "1"]], "bound": "0", "strict": False}
    made = prescribed(package([WHOLE], [row], [[0]]))
    made.document["specification"][kind][0] |= {"step": step, "lower": "0", "upper": "0"}
    assert "step" in refusal(made)


def test_a_category_has_the_step_1_or_none():
    """Proofs count on 1 for the member that is there; in steps of 3/10 the program would read 9/10."""
    row = {"terms": [[0, "1"]], "bound": "0", "strict": False}
    made = package([{**WHOLE, "step": "3/10"}, {**WHOLE, "step": None}], [row], [[0]], one_hot=[[0, 1]])
    made.weights |= prescribed(package([WHOLE] * 2, [row], [[0]])).weights
    assert "category" in refusal(made)
    assert prescribed(package([WHOLE] * 2, [row], [[0]], one_hot=[[0, 1]])).seal().check()


def test_proposals_are_made_whole_by_the_program(monkeypatch):
    """What proposes is not proved: numbers between steps, NaN and infinity are not served."""
    from smle.heads.grid.grid_program import GridProgram

    spec = Specification.from_yaml(
        "inputs: {x: [0, 1]}\noutputs: {a: {integer: true}, b: {integer: true}}\n"
        "rules: [{name: caps, then: 0 <= a <= 9 and 0 <= b <= 9}, {name: sum, then: a + b == 9}]\n"
    )
    program = GridProgram(certify_grid(spec))
    for odd in ([4.5, 4.5], [4.25, 4.75], [np.nan, 9.0], [np.inf, -np.inf], [4.0 + 1e-9, 5.0 - 1e-9]):
        monkeypatch.setattr(program.proposals, "candidates", lambda p, *_, odd=odd: iter([np.tile(odd, (len(p), 1))]))
        y, _ = program.explained(np.zeros((3, 1)), np.full((3, 2), 20, dtype=np.float32))
        assert (y == np.floor(y)).all()
        assert (y.sum(axis=1) == 9).all()
        assert all(Fraction(float(v)).denominator == 1 for v in y.ravel())
