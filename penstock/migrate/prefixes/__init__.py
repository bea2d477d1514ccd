"""Copies of plain prefixes that are no roots."""
