"""From listings, notifications and inventories to ingest batches."""
