"""What the pipeline costs in Dagster: runs, ticks and pages as batches become many (docs/benchmarks-pipeline.md)."""
