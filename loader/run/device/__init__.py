"""Batches on a device: copied there by a thread of the loader, ahead of the training."""
