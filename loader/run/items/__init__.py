"""Samples made by a dataset that you bring, in the plan's order."""
