"""Verify a root, with one module per kind of object: root, log, version, shard, tables, derived objects."""
