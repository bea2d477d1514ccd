"""Parquet tables of a dataset: columns, names, statistics, manifests, annotations, references."""
