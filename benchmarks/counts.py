"""Counts on a benchmark's command line."""

import argparse


def count(text: str) -> int:
    """A whole number of at least 1. Raises: what argparse tells of as one line that names the option."""
    if (found := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return found
