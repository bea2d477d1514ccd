"""Arrays, pictures and text, made fit to be shown: what several kinds of values share."""
