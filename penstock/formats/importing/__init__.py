"""Read an import's objects, and write its samples into parts."""
