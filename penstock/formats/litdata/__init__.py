"""Read and write LitData chunks."""
