"""Data jobs on engines: what they cost beside their units."""
