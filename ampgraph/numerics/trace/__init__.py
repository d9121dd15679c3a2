"""Which node is to blame."""
