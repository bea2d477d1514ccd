"""File formats of other libraries: registered (in place), imported (copied) and exported. `registry` lists them."""
