"""L5: carrying a planned batch out - fetch, verify, decode, transform, collate, hand over in order."""
