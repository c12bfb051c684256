"""Memory of one network from construction to certificate: `python -m studies.bench.scale_memory WIDTH` prints JSON."""

from __future__ import annotations

import json
import resource
import sys

import torch
from torch import Tensor, nn

from smle.nn import SafeNetwork
from studies.bench.scale_subjects import exclusive_labels


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def measure(width: int) -> dict[str, float]:
    """Train a few steps at an embedding width and certify; return peaks of this process in MB."""
    found: dict[str, float] = {"imported": _peak()}
    subject = exclusive_labels(64, width)
    network = SafeNetwork(
        nn.Sequential(nn.Linear(len(subject.spec.columns), width), nn.ReLU()), subject.spec, embedding=width
    )
    found["parameters"] = sum(p.numel() for p in network.parameters())
    X, y = subject.rows(256)
    optimizer = torch.optim.Adam(network.parameters())
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        loss: Tensor = nn.functional.mse_loss(network(X), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    found["trained"] = _peak()
    network.certificate_.check()
    found["certified"] = _peak()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(measure(int(sys.argv[1]))))
