"""Collectives over gloo and NCCL on hosts with netem; see README.md."""
