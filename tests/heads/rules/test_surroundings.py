"""Programs in the surroundings that callers make: forks, errors of NumPy that raise, rules that read no input."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pytest

import smle
from smle import Specification
from smle.heads.rules.checked_candidates import Candidates
from smle.heads.rules.clip_list import ClipList
from smle.heads.rules.rules_author import certify_rules

COUPLED = """
inputs: {x: [0, 1]}
outputs: [a, b]
rules:
  - {name: order, then: a <= b}
  - {name: sum, when: x >= 0.5, then: abs(a + b) <= 10}
"""

FORKED = """
import os, sys, threading, time
import numpy as np
from smle import Specification
from smle.heads.rules.rules_author import certify_rules
from smle.heads.rules.checked_candidates import Candidates

program = Candidates(certify_rules(Specification.from_yaml(sys.argv[1])))
X = np.full((2000, 1), 0.75)
answers = np.tile([50.0, -50.0], (2000, 1)) + np.arange(2000)[:, None]
expected = program(X[:20], answers[:20])
going = True

def repair():
    while going:
        program(X, answers)

thread = threading.Thread(target=repair)
thread.start()
failed = 0
for _ in range(20):
    time.sleep(0.01)
    child = os.fork()
    if child == 0:
        os._exit(0 if (program(X[:20], answers[:20]) == expected).all() else 3)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.002)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        status = 1
    failed += status != 0
    if failed:
        break
going = False
thread.join()
sys.exit(failed)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_children_that_are_forked_while_a_thread_repairs_answer():
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(FORKED), COUPLED],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("rules", [COUPLED, COUPLED.replace("a <= b", "a <= 1").replace("abs(a + b) <= 10", "b >= x")])
def test_errors_of_numpy_that_raise_elsewhere_do_not_here(rules):
    """A tiny answer underflows when it becomes float32, a huge one overflows: both are part of the program."""
    spec = Specification.from_yaml(rules)
    certificate = certify_rules(spec)
    program = (Candidates if "safe.slope" in certificate.tensors else ClipList)(certificate)
    answers = np.array([[1e-300, 0], [1e-40, 1e-44], [1e300, -1e300], [np.nan, np.inf], [5, -np.inf], [1e-310, 3]])
    X = np.array([[0.1], [0.9], [np.nan], [0.6], [1e-310], [0.5]])
    for rows in (1, 6, 300):
        y, x = np.resize(answers, (rows, 2)), np.resize(X, (rows, 1))
        quiet = program(x, y)
        with np.errstate(all="raise"):
            assert program(x, y).tobytes() == quiet.tobytes()
    corrected = smle.correct(lambda table: np.resize(answers[:2], (len(table), 2)), spec)
    table = pd.DataFrame({"x": np.linspace(0, 1, 7)})
    with np.errstate(all="raise"):
        assert np.isfinite(corrected.predict(table)).all()


@pytest.mark.parametrize("rows", [1, 3, 50, 2500])
def test_many_limits_of_which_none_reads_an_input(rows):
    outputs = [f"y{i}" for i in range(48)]
    rules = "".join(f"  - {{name: {name}, then: {name} >= 0}}\n" for name in outputs)
    spec = Specification.from_yaml(f"inputs: {{x: [0, 1]}}\noutputs: [{', '.join(outputs)}]\nrules:\n{rules}")
    rng = np.random.default_rng(0)
    answers = rng.normal(size=(rows, 48)).astype(np.float32)
    answers[0, :2] = np.nan, np.inf
    served = ClipList(certify_rules(spec))(rng.random((rows, 1)), answers)
    assert (served == np.where(np.isfinite(answers), np.maximum(answers, 0), 0)).all()
