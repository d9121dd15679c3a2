"""Running training steps."""
