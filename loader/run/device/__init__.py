"""Batches on a device, copied ahead of the training by one of the loader's threads."""
