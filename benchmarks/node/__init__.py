"""What a whole node gets out of each loader: as it comes, by number of workers, and beside a training."""
