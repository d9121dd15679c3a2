"""What keeps a slot in float32."""
