"""ONNX files whose head is the certified program, node by node, without torch (`networks/onnx_export.py` needs it)."""
