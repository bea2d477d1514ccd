"""Which source and which position a step takes: mixtures, buckets in turn, ramps, epochs, ranks."""
