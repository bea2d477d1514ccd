"""Dagster resources: the places of the data. No logic."""
