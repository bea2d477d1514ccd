"""Registered bytes made safe: they are read and summed, and copied into the root."""
