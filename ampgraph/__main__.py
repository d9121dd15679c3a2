"""`python -m ampgraph`."""

from .console import main

main()
