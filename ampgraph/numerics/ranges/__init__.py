"""What values reach, measured."""
