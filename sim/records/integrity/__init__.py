"""Whether a result folder is what a run wrote: checksums."""
