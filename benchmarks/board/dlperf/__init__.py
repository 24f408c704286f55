"""BERT-base and ResNet-50 on four servers of eight V100; see README.md."""
