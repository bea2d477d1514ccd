"""Images: decoded upright, cropped, and resized to one shape."""
