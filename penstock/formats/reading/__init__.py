"""Read objects within bounds, and describe foreign samples."""
