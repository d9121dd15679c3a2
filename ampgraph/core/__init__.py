"""What all of ampgraph speaks of."""
