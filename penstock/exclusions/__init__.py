"""Samples that people left out: the records, and the versions without the samples."""
