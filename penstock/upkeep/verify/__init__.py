"""Checks of a root, one module per kind of object: root, log, version, shard, tables, derived objects."""
