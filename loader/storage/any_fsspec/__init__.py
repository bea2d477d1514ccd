"""Every other URL scheme through fsspec."""
