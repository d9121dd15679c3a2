"""The training step as one graph: loss, gradients, loss scale, update, optimizers."""
