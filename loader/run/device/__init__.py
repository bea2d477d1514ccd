"""Batches on a device, copied ahead of the training by a thread of the loader."""
