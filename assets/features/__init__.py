"""Feature assets, and features that are computed again."""
