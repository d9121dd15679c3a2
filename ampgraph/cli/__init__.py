"""The same verbs as commands."""
