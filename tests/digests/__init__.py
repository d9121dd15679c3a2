"""What ampgraph writes and computes, as digests in committed files; see ``__main__`` for the commands."""
