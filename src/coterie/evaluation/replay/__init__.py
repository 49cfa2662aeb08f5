"""Routers trained and judged on recorded outcomes, without asking any model."""
