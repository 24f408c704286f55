"""BERT-large on 128 GPUs by DDP, Horovod and Bagua; see README.md."""
