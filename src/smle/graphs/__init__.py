"""ONNX files whose head is the certified program, node by node; only `smle.networks.onnx`, above, needs torch."""
