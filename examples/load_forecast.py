"""Load forecast: six hours ahead, with a bounded change from hour to hour and a limit on hot days.

Shows: a recurrent network that reads histories of one day to one week, rules about named features beside them, built in
Python with a helper, several outputs, a file whose lengths stay free. The data are simulated.
Run it: python examples/load_forecast.py
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
from smle.rules import bounded_change, rule
from smle.training import TrainingOptions, train

AHEAD = [f"in {h} h" for h in range(1, 7)]


def specification(ramp: float = 6.0) -> Specification:
    """No two neighboring hours differ by more than `ramp` MW; on hot days the line carries at most 80 MW."""
    limit = " and ".join(f"`{name}` <= 80" for name in AHEAD)
    return Specification.build(
        inputs={"last": (0, 120), "temperature": (-25, 45)},
        outputs=AHEAD,
        rules=[
            rule("bounded change", then=bounded_change(ramp, AHEAD)),
            rule("line limit in the heat", when="temperature >= 32", then=limit),
        ],
    )


class Recurrent(nn.Module):
    """Histories (rows, hours, 2) of any length -> an embedding of each."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.gru = nn.GRU(2, width, batch_first=True)

    def forward(self, history: Tensor) -> Tensor:
        """Return (rows, width)."""
        found: Tensor = self.gru(history)[0][:, -1]
        return found


def rows_of(hours: int, past: int, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Simulate load and temperature; the load jumps now and then when a factory starts.

    Returns:
        Features of the rules (n, 2), histories (n, past, 2) in numbers of order one, and loads ahead (n, 6).
    """
    rng = np.random.default_rng(seed)
    t = np.arange(hours + past + 6)
    temperature = (
        15 + 12 * np.sin(2 * np.pi * t / 24 / 30) + 6 * np.sin(2 * np.pi * (t - 9) / 24) + rng.normal(0, 1, len(t))
    )
    load = 55 + 12 * np.sin(2 * np.pi * (t - 8) / 24) + 0.4 * np.abs(temperature - 18) + rng.normal(0, 1, len(t))
    load += 9 * (rng.random(len(t)) < 0.03)
    both = np.stack([load, temperature], axis=-1)
    windows = np.lib.stride_tricks.sliding_window_view(both, past + 6, axis=0).transpose(0, 2, 1)[:hours]
    seen, ahead = windows[:, :past], windows[:, past:, 0]
    history = (seen - [55, 15]) / [12, 8]
    return torch.tensor(seen[:, -1]).float(), torch.tensor(history).float(), torch.tensor(ahead).float()


def main(*, hours: int = 4000, max_epochs: int = 40) -> float:
    """Train, export, attack; return the share of rows that break a rule."""
    spec = specification()
    features, history, ahead = rows_of(hours, 24)
    print(f"The history breaks a rule in {violation_rate(spec, features.numpy(), ahead.numpy()):.1%} of rows")
    torch.manual_seed(0)
    network = SafeNetwork(Recurrent(), spec, embedding=32)
    options = TrainingOptions(max_epochs=max_epochs, learning_rate=5e-3, verbose=False)
    train(network, (features, history), ahead, loss="squared_error", options=options)
    print(network.certificate_)

    features, history, ahead = rows_of(300, 168, seed=1)  # another year, a week of history
    answers = network.predict(features, history=history)
    scores = 1 - ((answers - ahead.numpy()) ** 2).mean(axis=0) / ahead.numpy().var(axis=0)
    print("R2 one to six hours ahead:", ", ".join(f"{score:.3f}" for score in scores), network.counts)

    network.to_onnx("load_forecast.onnx", example={"history": history[:4, :24]})
    check_onnx("load_forecast.onnx")
    session = onnxruntime.InferenceSession("load_forecast.onnx")
    for past in (24, 72, 168):
        own = {"history": history[:50, -past:]}
        columns = {name: features[:50, [i]].numpy() for i, name in enumerate(spec.columns)}
        feed = columns | {name: value.numpy() for name, value in own.items()}
        found = np.concatenate(session.run(AHEAD, feed), axis=1)
        np.testing.assert_allclose(found, network.predict(features[:50], **own), rtol=1e-3, atol=1e-3)

    attack = smle.attack(lambda t: network.predict(t, history=history[np.arange(len(t)) % 300]), spec, tries=3_000)
    print(attack)
    return violation_rate(spec, features.numpy(), answers) + attack.found


if __name__ == "__main__":
    main()
