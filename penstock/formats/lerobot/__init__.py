"""LeRobot datasets: layouts v2.0, v2.1 and v3.0; imported, registered, and exported as v3.0."""
