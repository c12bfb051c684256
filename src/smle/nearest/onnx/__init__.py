"""The search for allowed answers as ONNX nodes, from the same tables as in NumPy."""
