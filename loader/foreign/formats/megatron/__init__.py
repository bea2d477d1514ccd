"""Megatron's indexed datasets: their documents, and the index."""
