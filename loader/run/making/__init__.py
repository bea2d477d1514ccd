"""Make one step: fetch, verify, decode, transform, collate, substitute."""
