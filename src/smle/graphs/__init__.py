"""ONNX files whose head is the certified program, node by node, without torch (`smle.networks.onnx` needs it)."""
