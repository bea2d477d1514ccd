"""Photos: reading, audit and cutting."""
