"""Upkeep of a root: verify, gc, takedown, migrate, doctor, repair, exclusions."""
