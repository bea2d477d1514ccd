"""Statistics of a version's columns, exact at any size, and the normalisation made from them."""
