"""Search for a subject: names, hashed names, cells of tables, versions."""
