"""The rules by which a model is decided, a file each or a few that are kin; `planner.order` says what runs when."""
