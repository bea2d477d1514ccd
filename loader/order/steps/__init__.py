"""Compute a step's slots, substitutes, digest and state."""
