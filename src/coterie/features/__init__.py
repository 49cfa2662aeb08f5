"""Encoders: prompts to vectors for routers."""
