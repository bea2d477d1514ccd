"""A change becomes a version: gate, commit, compaction, takedowns, rebased annotations."""
