"""Media: types, audits, and the cutting of samples."""
