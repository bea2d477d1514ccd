"""The asset that keeps a dataset's search index up to date."""
