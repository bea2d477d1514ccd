"""Shards: tar files, their indexes and parts, and where the bytes of a sample lie."""
