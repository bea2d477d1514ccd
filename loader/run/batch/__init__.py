"""Batches while they are filled and delivered: columns, collation, buffers, metrics of a step."""
