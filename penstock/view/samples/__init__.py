"""Facts about a sample beside its row: edits of its columns, and samples that look like it."""
