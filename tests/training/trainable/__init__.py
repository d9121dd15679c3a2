"""Kinds of modules that people train, each beside torch: ``python -m training.trainable`` writes the table."""
