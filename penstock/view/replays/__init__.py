"""Replay a step's values as trained, in this process or in the recipe process."""
