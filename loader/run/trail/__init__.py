"""The trail of a run, kept under the root: its code, and what every step delivered."""
