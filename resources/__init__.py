"""Dagster resources: where the data lie. No logic."""
