"""LeRobot datasets for importer and exporter: layouts v2.0, v2.1 and v3.0, rows, and packets of videos."""
