"""The counts of a dataset card, in one pass over the samples table and bounded memory."""
