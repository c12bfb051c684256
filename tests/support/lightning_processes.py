"""What two processes of Lightning do: train a safe network together, then through its head, and judge its answers.

Argument: folder for the results.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from smle.nn import SafeNetwork
from support.safe_networks import BRAKING, make_rows
from support.sampling import Judge


class Braking(lightning.LightningModule):
    def __init__(self, *, through: bool) -> None:
        super().__init__()
        X, y = make_rows(BRAKING, 128)
        torch.manual_seed(0)
        self.through = through
        self.network = SafeNetwork(nn.Sequential(nn.Linear(3, 16), nn.ReLU()), BRAKING, embedding=16, example=(X, y))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        X, y = batch
        if self.through:
            self.network.eval()  # answers that obey, and the gradients of the correction
        return ((self.network(X) - y) ** 2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main(folder: Path) -> None:
    X, y = make_rows(BRAKING, 128)
    found = {}
    for through in (False, True):
        model = Braking(through=through)
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", strategy="ddp", devices=2, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model, DataLoader(TensorDataset(X, y), batch_size=32))
        network = model.network.eval()
        network.certificate_.check()
        with torch.no_grad():
            served = network(X)
        assert Judge(BRAKING).violations(X.numpy(), served.numpy()) == []
        found[str(through)] = torch.cat([p.detach().reshape(-1) for p in network.parameters()]).tolist()
        (folder / f"{trainer.global_rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
