"""Where coterie keeps what it can make again. Decides the folder; neither makes nor reads it."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$COTERIE_CACHE`, else `coterie` in the user's cache folder (`$XDG_CACHE_HOME`, else `~/.cache`)."""
    if own := os.environ.get("COTERIE_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "coterie"
