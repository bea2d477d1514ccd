"""Megatron-Energon: WebDataset's tar archives, and the folder `.nv-meta` with their list, splits and index."""
