"""From a step to its slots, substitutes, digest and state."""
