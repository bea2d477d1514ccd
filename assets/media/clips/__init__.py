"""Clips of videos: canonical (re-encoded) or reference (packets of the source)."""
