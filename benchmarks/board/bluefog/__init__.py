"""BlueFog and Horovod on V100; see README.md."""
