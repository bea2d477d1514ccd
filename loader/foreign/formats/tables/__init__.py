"""Tables, read once at registration: Parquet is then read by the decoded chunk, Arrow by the span."""
