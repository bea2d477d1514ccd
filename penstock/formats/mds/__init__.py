"""Read and write MDS shards, and compute Streaming's sample order."""
