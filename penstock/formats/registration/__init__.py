"""Register datasets: publish versions whose samples stay in their original objects."""
