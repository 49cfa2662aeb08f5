"""What outlives a process: the call cache, run folders and tensors on disk."""
