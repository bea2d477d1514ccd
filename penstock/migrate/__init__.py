"""Mirrors of a root: what there is to copy and what that costs, the copying, how far it is."""
