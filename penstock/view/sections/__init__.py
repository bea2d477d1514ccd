"""Pages as lists of sections, which HTML, the terminal and plain text draw."""
