"""Takedowns as formats and upkeep both read them: denied names, bytes and records."""
