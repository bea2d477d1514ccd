"""A local folder as a store: directory walks, memory maps, vector reads."""
