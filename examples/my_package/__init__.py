"""A model, a modality and a store of your own, as docs/extending.md describes them: copy the file that you need."""
