"""Combine several stores with the same objects into one."""
