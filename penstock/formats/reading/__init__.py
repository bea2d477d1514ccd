"""Read objects within limits, and describe foreign samples."""
