"""Formats whose objects are read from their beginning to their end, and never sought in."""
