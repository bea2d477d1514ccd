"""Dagster resources: the locations of the data. No logic."""
