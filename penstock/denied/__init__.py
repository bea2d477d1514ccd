"""Takedowns as adoption (formats) and takedown (upkeep) both read them: denied names, bytes and records."""
