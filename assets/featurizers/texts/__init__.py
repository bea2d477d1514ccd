"""Featurizers of text: token ids, and chats with the tokens to train on."""
