"""Pages or ranges for the next steps, read before a batch needs them."""
