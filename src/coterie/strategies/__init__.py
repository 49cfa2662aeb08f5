"""Strategies: how agents work together on one query."""
