"""Sessions of ONNX Runtime and MindSpore behind one protocol, devices, and arrays from and to files."""
