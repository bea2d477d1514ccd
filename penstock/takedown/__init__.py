"""Takedown: samples that somebody may no longer have, made unreadable wherever the root has them, and a proof of it."""
