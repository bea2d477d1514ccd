"""Sources as the order sees them: views, buckets, packed sequences, growth, quarantine lists."""
