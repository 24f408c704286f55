"""NCCL's all-reduce by hosts and cards, from public logs of nccl-tests; see README.md."""
