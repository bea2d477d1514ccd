"""LitData chunks."""
