"""Formats of others, a file each, and the readers that they share."""
