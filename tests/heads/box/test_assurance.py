"""verify, project and certify on networks with any backbone."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import smle
from smle import Specification
from smle.errors import CertificateError, DataError, NotCertifiedError
from smle.heads.box.network import assurance
from smle.heads.box.proof.verdict import Violated
from smle.nn import BoxNetwork
from smle.training import train
from support.sampling import Judge, hard_points

SPECS = {
    "numbers": """
inputs: {a: [-2, 3], b: [0, 10]}
outputs: [u, v]
rules:
  - {name: order, then: u <= v}
  - {name: cap, when: a + b <= 4.5, then: v <= 2}
  - {name: floor, when: a >= 1, then: u >= -3.3}
""",
    "inputs on the right": """
inputs: {weight: [40, 120], age: [0, 99]}
outputs: [dose, rest]
rules:
  - {name: by weight, then: 0 <= dose <= 0.5 * weight + 1}
  - {name: old, when: age >= 70, then: dose + rest <= 0.4 * weight}
""",
    "either or": """
inputs: {a: [-2, 3]}
outputs: [u, v]
rules:
  - {name: one side, then: u <= -1 or v >= 2}
""",
    "labels": """
inputs: {a: [-2, 3], b: [0, 10]}
labels: [cat, dog, animal]
rules:
  - {name: pets, then: not (cat and dog)}
  - {name: kind, when: b >= 0.7, then: dog implies animal}
""",
}


@pytest.mark.parametrize("bounds", ["constant", "fixed", "affine"])
@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("name", SPECS)
def test_projected_heads_are_certified_and_never_violate(name, gate, bounds):
    """Whatever the heads were, the nearest safe ones must pass checker and attack."""
    torch.manual_seed(0)
    spec = Specification.from_yaml(SPECS[name])
    d = len(spec.columns)
    network = BoxNetwork(nn.Linear(d, 6), spec, embedding=6, bounds=bounds, gate=gate)
    judge = Judge(spec)
    for scale in (0.1, 3.0, 100.0):
        with torch.no_grad():
            for parameter in network.heads.parameters():
                parameter.copy_(torch.randn_like(parameter) * scale)
        safe = smle.project(network.train())
        certificate = smle.certify(safe)
        assert min(item.margin for item in certificate.check()) > 0
        for dtype in (np.float32, np.float64):
            for X in hard_points(spec, np.random.default_rng(0), 4000, dtype=dtype):
                with torch.inference_mode():
                    assert judge.violations(X, safe(torch.from_numpy(X)).numpy()) == []


def _unsafe():
    torch.manual_seed(1)
    spec = Specification.from_yaml(SPECS["numbers"])
    network = BoxNetwork(nn.Linear(2, 5), spec, embedding=5, bounds="fixed")
    with torch.no_grad():
        network.heads.raw_weight.normal_(0, 3)
    return network


def test_unsafe_heads_are_not_certified_but_can_be_projected():
    network = _unsafe()
    verdicts = smle.verify(network)
    assert not verdicts.hold
    assert network.training
    real = [v for _, v in verdicts.failures() if isinstance(v, Violated)]
    assert real, "heads with such weights break a rule at some input"
    with torch.no_grad():
        for verdict in real:
            served = network.eval()(torch.tensor(verdict.x[None])).numpy()
            assert served[0] == pytest.approx(verdict.y, rel=1e-5)  # last bits differ between batch sizes
            assert Judge(network.spec).violations(verdict.x[None], served)
    with pytest.raises(NotCertifiedError, match=r"the model breaks it by .*for example at a=") as refused:
        smle.certify(network)
    assert refused.value.refuted
    before = network.frozen_heads().heads[0].W.copy()
    safe = smle.project(network)
    assert smle.certify(safe).check()
    assert np.array_equal(network.frozen_heads().heads[0].W, before)
    again = smle.project(safe)
    assert np.array_equal(again.frozen_heads().heads[0].W, safe.frozen_heads().heads[0].W)


def test_a_certificate_is_for_its_own_weights():
    network = smle.project(_unsafe())
    certificate = smle.certify(network)
    name = "backbone.weight"
    tensor = certificate.tensors[name]
    other = tensor._replace(data=bytes([tensor.data[0] ^ 1]) + tensor.data[1:])
    with pytest.raises(CertificateError, match="digest"):
        replace(certificate, tensors={**certificate.tensors, name: other}).check()


def test_nothing_is_projected_that_the_exact_checker_does_not_accept(monkeypatch) -> None:
    """A projection that is wrong about its heads is found out before the network is handed over."""
    spec = Specification.from_yaml("inputs: {a: [-1, 1]}\noutputs: [y]\nrules:\n  - {name: r, then: y <= 0.5}\n")
    network = BoxNetwork(nn.Linear(1, 4), spec, embedding=4, bounds="fixed").eval()
    over = network.frozen_heads()
    head = over.heads[0]
    assert head is not None
    unsafe = replace(over, heads=(replace(head, b=head.b + 10),))
    monkeypatch.setattr(assurance, "project_heads", lambda *_, **__: SimpleNamespace(succeeded=True, over=unsafe))
    with pytest.raises(NotCertifiedError):
        assurance.project(network)


def test_wrong_types_are_named():
    spec, x = Specification.from_yaml(SPECS["numbers"]), torch.rand(20, 2)
    for judge in (smle.verify, smle.certify, smle.project):
        with pytest.raises(TypeError, match=r"Expected an estimator, .* Got Linear"):
            judge(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="from_yaml"):
        BoxNetwork(nn.Linear(2, 4), SPECS["numbers"], embedding=4)
    with pytest.raises(ValueError, match="at least one unit"):
        BoxNetwork(nn.Linear(2, 4), spec, embedding=0)
    with pytest.raises(DataError, match=r"Expected tensors.*ndarray"):
        train(BoxNetwork(nn.Linear(2, 4), spec, embedding=4), x.numpy(), x.numpy(), loss=nn.functional.mse_loss)


def test_verdicts_are_shown_by_number_and_rule() -> None:
    text = "{inputs: {a: [0, 1], b: [0, 1]}, outputs: [y, z], rules: [{name: r, then: y <= 1 and z >= 0}]}\n"
    network = smle.project(BoxNetwork(nn.Linear(2, 3), Specification.from_yaml(text), embedding=3))
    verdicts = smle.verify(network)
    assert repr(verdicts) == f"Verdicts(2 of 2 proved, smallest margin {verdicts.margin:.3g})"
    assert str(verdicts).splitlines()[-1].split()[:4] == ["r", "2", "of", "2"]
