"""Worlds: a root on a store with faults, random actors on the real code, and time that does not pass by itself.

What came of a world is judged by `judge`, which shares no line with what it judges.
"""
