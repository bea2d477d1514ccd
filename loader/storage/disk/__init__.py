"""A folder of this machine as a store: walks, memory maps, vector reads."""
