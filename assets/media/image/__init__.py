"""Photos: opened, audited, cut."""
