"""Photos: opened, audited, shown upright in sRGB, stored."""
