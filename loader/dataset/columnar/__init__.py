"""Tables of others: which fields and metadata their columns become, and Parquet read where it lies, chunk by chunk."""
