"""Search a version's samples by similarity and by words; the derived segments that make it fast."""

CODE_FOLDER = "search"
"""Folder in a node cache with local files of codes. It stands here as a training's start reads it, and nothing else."""
