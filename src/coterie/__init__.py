"""Coterie sends each query to the smallest group of LLM agents able to answer it."""

__version__ = "0.1.0"
