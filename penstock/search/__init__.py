"""Make the derived data that finds samples: indexes and maps."""
