"""LitData chunks: registered, exported, and imported when compressed."""
