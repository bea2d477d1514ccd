"""Versions and views, and tables derived from views: samples, splits, deltas, packed documents."""
