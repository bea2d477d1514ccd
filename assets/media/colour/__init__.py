"""Colours of photos: to sRGB, 8 bits, without alpha."""
