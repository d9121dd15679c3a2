"""Data parallel training: each process computes the gradients of its share of a batch, and all make the same update."""
