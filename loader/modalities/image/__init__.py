"""Images: decoded to a shape, upright, cropped."""
