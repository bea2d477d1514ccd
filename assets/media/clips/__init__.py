"""Clips of videos: canonical (encoded anew) or reference (packets of the source)."""
