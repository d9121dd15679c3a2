"""Functions that other tools' callers know, done by `ampgraph.convert`: change the import alone."""
