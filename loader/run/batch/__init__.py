"""A batch while it is filled and handed over: columns, collation, buffers, metrics of a step."""
