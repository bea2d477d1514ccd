"""Carry a plan out: fetch, verify, decode, transform, collate, and deliver batches in order."""
