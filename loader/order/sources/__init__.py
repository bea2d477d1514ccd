"""Sources as the order uses them: views, buckets, packed sequences, growth, quarantine lists."""
