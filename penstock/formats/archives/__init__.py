"""Tar archives of WebDataset and Energon: registered, exported, and imported when compressed."""
