"""Versions and views, and tables derived of a view: samples, splits, deltas, packed documents."""
