"""Reads of objects in the formats of others, within bounds."""
