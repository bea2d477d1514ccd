"""Removal of samples: rewritten shards, derived objects, tables of the pipeline, orphans."""
