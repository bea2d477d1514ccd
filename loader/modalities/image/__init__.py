"""Pictures: decoded to a shape, upright, cropped."""
