"""What a scheme costs on a cluster, and what is decided by it."""
