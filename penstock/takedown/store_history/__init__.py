"""Deleted objects that stores and node caches still keep."""
