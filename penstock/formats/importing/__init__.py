"""Work units of imports, for spans of objects and for decoded samples."""
