"""Parts that every backend uses: threads, fork safety, retries, memory and request counts."""
