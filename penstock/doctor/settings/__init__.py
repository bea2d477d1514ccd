"""Settings of buckets, lifecycle rules and file systems."""
