"""Models that are run step by step, with what they remember fed back to them."""
