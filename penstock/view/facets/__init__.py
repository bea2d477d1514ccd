"""Facets of a version's columns, and the filter that they count under."""
