"""Segments given beside an object (`_segments.*`): which stretches become units."""
