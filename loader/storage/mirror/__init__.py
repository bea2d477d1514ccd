"""Several stores that hold the same objects, as one."""
