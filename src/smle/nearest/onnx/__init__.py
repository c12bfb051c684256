"""The tables of blocks as nodes of ONNX: the search for allowed answers inside of graphs."""
