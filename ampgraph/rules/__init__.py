"""Rules: what is decided or rewritten, why, and how it is written, beside each other."""
