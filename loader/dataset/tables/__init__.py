"""Parquet tables of a dataset: columns, statistics, manifests, annotations, registered objects."""
