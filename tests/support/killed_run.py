"""A run that a test kills: trains with a checkpoint and writes the final weights.

Arguments: checkpoint, result; with `--wait`, it goes slowly and stops at epoch 15 until it is killed.
"""

from __future__ import annotations

import sys
import time

import torch
from safetensors.torch import save_file

from smle.training.loop import EpochInfo, TrainingOptions, train
from support.safe_networks import BRAKING, make_network, make_rows, squared

OPTIONS = TrainingOptions(max_epochs=25, warmup_epochs=3, batch_size=32, learning_rate=1e-2, verbose=False)


def main(checkpoint: str | None, *, slowly: bool) -> dict[str, torch.Tensor]:
    """Train and return the final state."""

    def pause(info: EpochInfo) -> None:
        if slowly:
            time.sleep(3600 if info.epoch == 15 else 0.05)

    X, y = make_rows(BRAKING, 300)
    network = make_network(BRAKING)
    train(network, X, y, loss=squared, options=OPTIONS, enforcement="pdcg", checkpoint=checkpoint, callbacks=[pause])
    return {name: value.contiguous() for name, value in network.state_dict().items()}


if __name__ == "__main__":
    save_file(main(sys.argv[1], slowly="--wait" in sys.argv), sys.argv[2])
