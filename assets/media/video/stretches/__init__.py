"""Stretches of a video that become clips: shots, groups of pictures, spans."""
