"""Training .mindir files on MindSpore."""
