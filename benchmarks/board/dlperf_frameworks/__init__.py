"""BERT-base and ResNet-50 in seven other implementations on the servers of ``dlperf``; see README.md."""
