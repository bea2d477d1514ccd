"""Media files: types, audits, and cutting into units."""
