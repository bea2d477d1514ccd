"""A dataset card as HTML, Markdown and metadata of the Hugging Face Hub."""
