"""DDP, local SGD and DiLoCo on four L40S under shaped bandwidth; see README.md."""
