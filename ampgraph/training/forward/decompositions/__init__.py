"""What a traced torch module is taken apart into before its export, where ONNX has no operator that trains.

Everything else stays whole: torch's own table would take norms and losses apart too. These files import torch: only
the export does so with them.
"""
