"""Measuring teams: run, grade, compare, report."""
