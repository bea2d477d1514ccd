"""Count a version's samples in one pass, in bounded memory."""
