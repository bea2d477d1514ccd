"""Read and write WebDataset and Energon archives."""
