"""Media: their types, their soundness, and the cutting of samples from them."""
