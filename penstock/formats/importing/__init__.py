"""Work units of imports: of bytes that are spans of objects, and of samples that a format has to make."""
