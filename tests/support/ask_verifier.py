"""Ask an outside verifier about exports: `python ask_verifier.py NAME CELL.onnx ...`; prints holds or broken for each.

Runs in the interpreter that has the verifier, which may be another one than that of the tests: its pins differ.
"""

import sys
import warnings
from pathlib import Path


def pynever(network: Path) -> str:
    """Complete star sets; True is a proof."""
    from pynever.strategies.conversion.converters.onnx import ONNXConverter
    from pynever.strategies.conversion.representation import load_network_path
    from pynever.strategies.verification.algorithms import SSLPVerification
    from pynever.strategies.verification.parameters import SSLPVerificationParameters
    from pynever.strategies.verification.properties import VnnLibProperty

    model = ONNXConverter().to_neural_network(load_network_path(str(network)))
    question = VnnLibProperty(str(network.with_suffix(".vnnlib")))
    answer, _ = SSLPVerification(SSLPVerificationParameters(heuristic="complete")).verify(model, question)
    return {True: "holds", False: "broken"}[answer]


def vibecheck(network: Path) -> str:
    """Bound propagation with branch and bound; `unsat` is a proof."""
    from vibecheck.api import verify

    result = verify(str(network), str(network.with_suffix(".vnnlib")), timeout=600, device="cpu")
    return {"unsat": "holds", "sat": "broken"}.get(result.verdict, result.verdict)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for place in sys.argv[2:]:
        print("answer:", {"pynever": pynever, "vibecheck": vibecheck}[sys.argv[1]](Path(place)))
