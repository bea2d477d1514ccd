"""Shards: tar files, their indexes and parts, and the places of a sample's bytes."""
