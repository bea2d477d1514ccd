"""WebDataset and Energon archives."""
