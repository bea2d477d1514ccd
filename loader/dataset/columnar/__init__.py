"""Foreign tables: their columns as fields and metadata, and Parquet read in place, chunk by chunk."""
