"""Import, register and export tables: Parquet, Arrow, Hugging Face, CSV, JSON, Lance, TFRecord."""
