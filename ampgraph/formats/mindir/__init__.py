"""MindIR, through its protobuf."""
