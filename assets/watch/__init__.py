"""Alarms, metrics and states of ingest batches."""
