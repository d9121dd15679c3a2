"""ONNX, through onnx_ir."""
