"""What is known of a model before anything is decided: asked here, computed once."""
