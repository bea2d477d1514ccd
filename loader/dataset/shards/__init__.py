"""Shards: tar files, their indexes and parts, and the addresses of a sample's bytes."""
