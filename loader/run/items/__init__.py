"""Samples made by anybody's dataset, in the plan's order."""
