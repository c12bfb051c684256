"""Run in a copy of the sources to which docs/howto/heads was added: use both heads as a user would."""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
from sklearn.linear_model import LinearRegression

import smle
import smle_check
from smle.certificates.issue import sealed
from smle.corrected import CorrectedModel
from smle.errors import NotCertifiedError
from smle.export import check_onnx
from smle.heads.table import HEADS
from smle.networks.certified_head import CertifiedHead
from smle.serving.fronts import PythonModel

folder = Path(sys.argv[1])
assert Path(smle.__file__).is_relative_to(folder), smle.__file__

# --- even whole numbers
spec = smle.Specification.from_yaml(
    "inputs: {x: [0, 10]}\noutputs: {pairs: {step: 2, range: [0, 100]}}\nrules: [{name: shelf, then: pairs < 36}]\n"
)
model = smle.correct(lambda table: 7.3 * table["x"], spec)
assert model.certificate_.kind == "even"
assert model.predict(pd.DataFrame({"x": [0.5, 1.0, 9.0]})).tolist() == [4, 8, 34]
hostile = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 3e38, 1e-40, 33.0, 35.0, -0.0], dtype=np.float32)
served = model.head(np.zeros((10, 1)), hostile[:, None])
assert set((served % 2).ravel()) == {0.0}
assert served.min() >= 0
assert served.max() <= 34
table = pd.DataFrame({"x": np.linspace(0, 10, 200)})
fitted = smle.SafeRegressor(spec, LinearRegression()).fit(table, 4 * table["x"])
fitted.save(folder / "model")
assert "even whole numbers" in "\n".join(smle.load(folder / "model").certificate_.head)
assert smle_check.check(str(folder / "model")).proved
fitted.to_onnx(folder / "even.onnx")
assert check_onnx(folder / "even.onnx").proved
session = onnxruntime.InferenceSession(folder / "even.onnx")
answers = session.run(["pairs"], {"x": table[["x"]].to_numpy(np.float32)})[0]
np.testing.assert_array_equal(answers.ravel(), fitted.predict(table.astype(np.float32)))
certificate = model.certificate_
for name, value in (("even.upper", 36.0), ("even.upper", 33.0), ("even.lower", np.nan)):
    changed = {name: smle_check.Tensor("F32", (1,), np.array([value], dtype="<f4").tobytes())}
    document = {key: certificate.document[key] for key in ("program", "specification", "gate", "proof")}
    try:
        sealed(document, certificate.block, certificate.tensors | changed, {})
    except NotCertifiedError:
        continue
    raise AssertionError(f"{name} = {value} was accepted")

# --- the largest of three
spec = smle.Specification.from_yaml(
    "inputs: {x: [0, 10], k: {categories: [a, b]}}\noutputs: [y]\nrules: [{name: cap, then: 0 <= y <= 30}]\n"
)
asked = []


def squared(table: pd.DataFrame) -> np.ndarray:
    """Answer, and note what was asked."""
    asked.append(table["x"].to_numpy())
    return np.where(table["k"] == "a", table["x"], -table["x"]).astype(float) ** 3 - 4 * (table["k"] == "b")


certificate = HEADS["largest"].certify(spec, moved="x", by="1/2")
model = CorrectedModel(PythonModel(squared, spec, "a function"), spec, certificate)
found = model.predict(pd.DataFrame({"x": [1.0, 2.0, 9.0], "k": ["a", "b", "a"]}))
np.testing.assert_allclose(found, [1.5**3, 0.0, 30.0])
np.testing.assert_allclose(np.stack(asked), [[1, 2, 9], [0.5, 1.5, 8.5], [1.5, 2.5, 9.5]])
assert smle.correct(squared, spec).certificate_.kind == "rules"  # it suits no rules by itself
try:
    CertifiedHead(certificate)
except TypeError as error:
    refused = str(error)
assert "asks at other inputs" in refused
print("both heads work")
