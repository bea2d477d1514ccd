"""Where a subject is: names, hashed names, cells of tables, versions."""
