"""MDS shards, and the order of Streaming."""
