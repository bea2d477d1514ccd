"""Metrics for Prometheus, and the conditions that need a person."""
