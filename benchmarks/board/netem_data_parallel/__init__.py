"""Three ways to average gradients over NCCL on hosts with netem; see README.md."""
