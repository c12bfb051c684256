"""Train speeds: a Transformer advises speed and power on every section of a route, 5 to 200 sections long.

Shows: sequences of different lengths with padding (`mask=`), rules at every position, a file whose lengths stay free.
The data are simulated.
Run it: python examples/train_speeds.py
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

import smle
from smle import Specification
from smle.baselines import violation_rate
from smle.export import check_onnx
from smle.nn import SafeNetwork

RULES = """
inputs:
  limit: [30, 300]        # km/h, as signalled
  slope: [-40, 40]        # per mille
  wet: [0, 1]             # share of the section
outputs: [speed, power]   # km/h, MW; below 0 the train brakes
rules:
  - {name: signals, then: 0 <= speed <= limit}
  - {name: wet rails, when: wet >= 0.5, then: speed <= 0.8 * limit}
  - {name: no power downhill, when: slope <= -20, then: power <= 0}
  - {name: what the line gives, then: power >= -8 and power + 0.02 * speed <= 10}
"""


class Route(nn.Module):
    """Sections (routes, sections, 3) -> an embedding of each; padding is not looked at."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.up, self.layers = nn.Linear(3, width), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, sections: Tensor, padding: Tensor) -> Tensor:
        """Return (routes, sections, width)."""
        places = torch.arange(sections.shape[1]) / 20
        x = self.up(sections) + torch.sin(places[:, None] + torch.arange(self.up.out_features))
        found: Tensor = self.layers(x, src_key_padding_mask=padding)
        return found


def routes(count: int, longest: int, *, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return sections (count, longest, 3), what drivers did (count, longest, 2), and where there is a section."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(min(5, longest), longest + 1, count)
    limit = np.repeat(rng.choice([40.0, 80, 120, 160, 230, 300], (count, longest // 4 + 1)), 4, axis=1)[:, :longest]
    slope, wet = rng.uniform(-40, 40, (count, longest)), rng.random((count, longest))
    ahead = np.minimum(limit, np.roll(limit, -1, axis=1) + 60)  # they slow down in time
    speed = ahead * np.where(wet >= 0.5, 0.78, 0.98) + rng.normal(0, 4, (count, longest))
    power = np.where(slope <= -20, -1.0, 0.01 * speed + 0.1 * slope) + rng.normal(0, 0.3, (count, longest))
    x, y = np.stack([limit, slope, wet], axis=-1), np.stack([speed, power.clip(-8, 10)], axis=-1)
    mask = np.arange(longest) < lengths[:, None]
    return torch.tensor(x).float(), torch.tensor(y).float(), torch.tensor(mask)


def arguments(x: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Return what the backbone reads: sections in numbers of order one, and where there are none."""
    return {"sections": (x - torch.tensor([150.0, 0, 0.5])) / torch.tensor([100.0, 20, 0.3]), "padding": ~mask}


def main(*, rows: int = 400, max_epochs: int = 20) -> float:
    """Train, export, attack; return the share of sections at which a rule is broken."""
    spec = Specification.from_yaml(RULES)
    x, y, mask = routes(rows, 40, seed=0)
    torch.manual_seed(0)
    network = SafeNetwork(Route(), spec, embedding=32, example=(x[mask], y[mask]))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(max_epochs):
        for part in torch.randperm(len(x)).split(100):
            given = arguments(x[part], mask[part])
            answers = network(x[part], **given)[mask[part]]
            optimizer.zero_grad()
            ((answers - y[part][mask[part]]) / y[mask].std(dim=0)).square().mean().backward()
            optimizer.step()
    network.eval()
    print(network.certificate_)

    x, y, mask = routes(20, 200, seed=1)  # other routes, up to 200 sections
    answers = network.predict(x, mask=mask, **arguments(x, mask))  # NaN where there is no section
    error = np.abs(answers[mask] - y[mask].numpy()).mean(axis=0)
    print(f"{int(mask.sum()):,} sections: mean error {error[0]:.1f} km/h, {error[1]:.2f} MW; {network.counts}")

    network.to_onnx("train_speeds.onnx", example=arguments(x[:3, :6], mask[:3, :6]))
    check_onnx("train_speeds.onnx")
    session = onnxruntime.InferenceSession("train_speeds.onnx")
    for length in (5, 200):  # a file has one row per position, sequence after sequence
        x, _, mask = routes(3, length, seed=length)
        columns = {name: x[..., i].reshape(-1, 1).numpy() for i, name in enumerate(spec.columns)}
        given = {name: value.numpy() for name, value in arguments(x, mask).items()}
        found = np.concatenate(session.run(list(spec.targets), columns | given), axis=1).reshape(3, length, 2)
        with torch.no_grad():
            np.testing.assert_allclose(found[mask], network(x, **arguments(x, mask))[mask], rtol=1e-3, atol=1e-3)

    attack = smle.attack(OneRoute(network), spec, tries=5_000)
    print(attack)
    answers = network.predict(x, **arguments(x, mask)).reshape(-1, 2)
    return violation_rate(spec, x.reshape(-1, 3).numpy(), answers) + attack.found


class OneRoute(nn.Module):
    """Takes rows (n, 3) for the sections of one route, for an attack."""

    def __init__(self, network: SafeNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Return speed and power on each section, (n, 2)."""
        everywhere = torch.ones(1, len(x), dtype=torch.bool)
        answers: Tensor = self.network(x[None], **arguments(x[None], everywhere))[0]
        return answers


if __name__ == "__main__":
    main()
