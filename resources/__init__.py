"""Dagster resources: the root and raw stores, the compute cluster and the alerts' channels."""
