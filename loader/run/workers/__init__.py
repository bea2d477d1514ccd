"""Worker processes that make whole batches in shared memory; docs/executors.md explains when and why."""
