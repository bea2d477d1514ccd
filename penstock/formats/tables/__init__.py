"""Tables: Parquet, Arrow, Hugging Face, CSV, JSON, Lance, TFRecord."""
