"""The trail of a run: its code, and what every step delivered, on record under the root."""
