"""ONNX files: is the head in the file the one that its certificate speaks of?"""
