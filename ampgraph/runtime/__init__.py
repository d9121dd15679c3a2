"""Running models: MindSpore's graph executor, and arrays from and to files."""
