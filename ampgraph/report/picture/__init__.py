"""A model as one page to look at: its graph folded by layers, precision by colour, reasons, Casts, errors by node."""
