"""Colour and size of the canonical picture of a video."""
