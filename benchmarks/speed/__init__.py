"""How fast Paceline is, beside its peers: one interleaved run, which writes ``docs/benchmarks.md``."""
