"""Work units of imports."""
