"""Worker processes that make whole batches in shared memory; docs/throughput.md explains when and why."""
