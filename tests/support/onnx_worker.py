"""Runs in the Python that has the onnxruntime to be asked: `python onnx_worker.py FOLDER START {plain,flush}`.

FOLDER has `cases.json` and the files that it names. Each call leaves `CASE.CALL.npz`, or `CASE.CALL.txt` with what the
runtime said. Needs NumPy and onnxruntime alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime


def main(folder: Path, start: int, mode: str) -> None:
    """Run all cases from number `start` on. Flushing is set for the whole process by its first session."""
    onnxruntime.set_default_logger_severity(4)
    cases = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    for number, case in enumerate(cases):
        if number < start:
            continue
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.__members__[case["level"]]
        if mode == "flush":
            options.add_session_config_entry("session.set_denormal_as_zero", "1")
        try:
            data = (folder / case["model"]).read_bytes()
            session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001 - whatever a runtime raises is its refusal
            (folder / f"{number}.txt").write_text(str(error), encoding="utf-8")
            continue
        stored = np.load(folder / case["feeds"])
        for call in range(case["calls"]):
            place = folder / f"{number}.{call}"
            prefix = f"{call}/"
            feed = {name[len(prefix) :]: stored[name] for name in stored.files if name.startswith(prefix)}
            feed = {name: v.astype(object) if v.dtype.kind == "U" else v for name, v in feed.items()}
            place.with_name(place.name + ".begun").touch()
            try:
                answers = session.run(case["names"], feed)
                np.savez(place.with_name(place.name + ".npz"), *answers)
            except Exception as error:  # noqa: BLE001
                place.with_name(place.name + ".txt").write_text(str(error), encoding="utf-8")
        (folder / f"{number}.done").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
