"""Loaders on a whole node: as they come, by number of workers, and beside a training."""
