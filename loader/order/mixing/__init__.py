"""Source and position of each slot of a step: mixtures, buckets in turn, ramps, epochs, ranks."""
