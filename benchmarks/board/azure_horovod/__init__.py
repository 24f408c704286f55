"""Horovod on Azure with four GPUs a host; see README.md."""
