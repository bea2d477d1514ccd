"""LitData's optimized datasets: the index, the leaves of its samples, and its two layouts of a chunk."""
