"""Gradients of ONNX graphs in standard operators."""
