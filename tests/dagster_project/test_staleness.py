"""What Dagster calls stale when a featurizer changes: the feature's own partitions, and nothing else."""
