"""Training: loss scaling as data."""
