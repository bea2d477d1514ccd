"""Near-duplicates: copies that are not the same bytes, found exactly and settled by one rule."""
