"""Later labels: rows of CSV, JSON Lines, Parquet or Arrow, joined to samples."""
