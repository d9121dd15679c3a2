"""The forward graph: export, reading, lowering."""
