"""Usage: GPU-hours, queue hours and stored bytes, by who used them."""
