"""MDS shards: registered, exported, imported when compressed, and read in the order of Streaming."""
