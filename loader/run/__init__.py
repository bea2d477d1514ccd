"""Run a plan: fetch, verify, decode, transform, collate, and deliver batches in order."""
