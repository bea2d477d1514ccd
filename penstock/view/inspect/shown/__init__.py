"""Values as pages show them: in words, with their marks and thumbnails."""
