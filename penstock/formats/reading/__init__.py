"""Bounded reads of objects."""
