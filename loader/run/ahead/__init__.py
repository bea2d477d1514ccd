"""Reads before they are needed: pages or ranges of the next steps."""
