"""Takedown data that formats and upkeep share: denied names, bytes and records."""
