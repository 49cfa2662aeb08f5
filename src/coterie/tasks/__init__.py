"""Queries that can be graded: data, answer contracts, and one verifier per kind of item."""
