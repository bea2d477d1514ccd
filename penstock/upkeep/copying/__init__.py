"""Copy objects and hash them on the way. A journal lets a killed run resume."""
