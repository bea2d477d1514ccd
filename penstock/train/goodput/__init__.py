"""Goodput: the node-seconds of a run by part, from the scheduler's accounting and the run's record."""
