"""Versions and views, and tables derived from a view: samples, splits, deltas, packed documents."""
