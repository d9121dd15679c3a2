"""The forward graph: export, reading, losses; `lowerings` write in other operators what has no gradient."""
