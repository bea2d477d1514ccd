"""Foreign tables: the fields and metadata of their columns, and Parquet read in place, chunk by chunk."""
