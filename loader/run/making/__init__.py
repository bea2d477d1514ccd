"""The making of one step: fetch, verify, decode, transform, collate, substitute."""
