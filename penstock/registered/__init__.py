"""Registered bytes made safe: they are read and summed."""
