"""Publication of a version: the writer, the gate, the commit, and denied samples."""
