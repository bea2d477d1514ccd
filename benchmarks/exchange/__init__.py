"""Registration, training and import of other people's formats, and export to them, measured."""
