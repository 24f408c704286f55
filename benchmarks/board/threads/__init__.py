"""Training and gloo by machines of public threads and benchmarks; see README.md."""
