"""Segments given beside an object (`_segments.*`): the stretches of it that become units."""
