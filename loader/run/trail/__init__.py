"""The run log (trail), kept under the root: a run's code, and what every step delivered."""
