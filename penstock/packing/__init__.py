"""Pack documents into sequences once, and store these as a dataset: `penstock pack`."""
