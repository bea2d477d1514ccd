"""Nodes of a cluster that read one bucket: what leaves the bucket, and what faults cost."""
