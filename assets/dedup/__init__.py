"""Near-duplicates: copies with different bytes, found by exhaustive search and resolved by one rule."""
