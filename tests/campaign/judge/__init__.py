"""A reader of roots, written from docs/format.md alone: it imports nothing of the packages whose work it judges.

It is given the objects of a root, key -> bytes, and says what they hold, or how they break the format.
"""
