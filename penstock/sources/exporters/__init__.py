"""Exporters: a file for each format, as `penstock.sources` describes them."""
