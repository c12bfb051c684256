"""What each of two processes does: train together, certify, report. Argument: folder for the results."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from smle.heads.box.network.assurance import certify
from smle.nn import BoxNetwork, SafeNetwork
from smle.training.loop import TrainingOptions, train
from support.safe_networks import BRAKING, make_network, make_rows, squared

OPTIONS = TrainingOptions(max_epochs=4, final_epochs=2, batch_size=33, learning_rate=1e-2, verbose=False)


def run(kind: str, *, checkpoint: str | None = None) -> tuple[BoxNetwork | SafeNetwork, list[float]]:
    """Train a network; in two processes each takes half of every batch."""
    X, y = make_rows(BRAKING, 200)
    network: BoxNetwork | SafeNetwork = make_network(BRAKING)
    if kind == "safe":
        torch.manual_seed(0)
        network = SafeNetwork(nn.Sequential(nn.Linear(3, 8), nn.ReLU()), BRAKING, embedding=8)
    enforcement = "pdcg" if kind == "box" else None
    history = train(network, X, y, loss=squared, options=OPTIONS, enforcement=enforcement, checkpoint=checkpoint)
    return network, history.validation_loss


def wrapped() -> float:
    """Return how far gradients under DistributedDataParallel are from those of one process, as a share of them.

    A box while it is trained, and a safe network, whose answers are the backbone's own then; and in eval mode, where
    gradients pass through its head.
    """
    X, y = make_rows(BRAKING, 64)
    torch.manual_seed(0)
    safe = SafeNetwork(nn.Sequential(nn.Linear(3, 8), nn.ReLU()), BRAKING, embedding=8, example=(X, y))
    found = []
    for network in (make_network(BRAKING, bounds="affine"), safe, copy.deepcopy(safe).eval()):
        alone = copy.deepcopy(network)
        squared(alone(X), y).mean().backward()
        mine = slice(dist.get_rank(), None, 2)
        together = DistributedDataParallel(network)
        squared(together(X[mine]), y[mine]).mean().backward()
        pairs = zip(network.parameters(), alone.parameters(), strict=True)
        found += [float((one.grad - two.grad).norm() / two.grad.norm().clamp(min=1e-6)) for one, two in pairs]
    return max(found)


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    report: dict[str, object] = {"wrapped": wrapped()}
    for kind in ("safe", "box"):
        network, losses = run(kind, checkpoint=str(folder / f"{kind}.checkpoint"))
        certificate = certify(network) if isinstance(network, BoxNetwork) else network.certificate_
        certificate.check()
        flat = torch.cat([value.double().reshape(-1) for value in network.state_dict().values()])
        report[kind] = {"weights": flat.tolist(), "losses": losses}
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
