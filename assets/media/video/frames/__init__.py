"""Frames of a video: their times, interlacing, side data, thumbnails."""
