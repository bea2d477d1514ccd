"""Replay a step's values as the training received them, in this process or in the recipe process."""
