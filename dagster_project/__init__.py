"""The Dagster code location: wiring only."""
