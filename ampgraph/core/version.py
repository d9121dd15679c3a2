"""The version of ampgraph, in the one place that packaging and the command line read it from."""

__version__ = "0.3.0"
