"""Objects copied and hashed once, with a journal that survives a kill."""
