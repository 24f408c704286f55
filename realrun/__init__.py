"""Schemes on real processes: the cluster driver over torch.distributed, and its launcher."""
