"""Running training steps on ONNX Runtime: trainer, data, epochs, schedules, checkpoints."""
