"""Maps of versions for pages."""
