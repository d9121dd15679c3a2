"""A rewrite a module: where it applies, whether it pays, and how it is written."""
