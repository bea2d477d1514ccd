"""Turn a change into a version: verdict check, commit, compaction, takedowns, rebased annotations."""
