"""What a forward graph has that gradients or runtimes cannot take, in other operators."""
