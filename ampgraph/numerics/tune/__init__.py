"""As little float32 as meets a tolerance."""
