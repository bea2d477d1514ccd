"""The dataset card of a version: counts, distributions, provenance, checks and examples.

card = build_card(root, version)
render_json(card), render_markdown(card), render_html(card)
save_card(root.store, card)                     cards/<dataset>/<number>-<version id>/
"""
