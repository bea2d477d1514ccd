"""Labels that come later: rows of CSV, JSON Lines, Parquet or Arrow, joined to samples."""
