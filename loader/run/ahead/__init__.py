"""Pages or ranges of the next steps, read before a batch needs them."""
