"""Where completions come from. A backend holds one model and serves every agent over it."""
