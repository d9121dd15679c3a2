"""`python -m ampgraph`."""

from .cli.console import main

main()
