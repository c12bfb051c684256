"""Checks that the head in an ONNX file is the one its certificate is about."""
