"""Whether a result folder is what a run wrote: checksums, and facts that contradict each other."""
