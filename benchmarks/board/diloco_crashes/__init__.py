"""DDP and DiLoCo through three crashes, to a target loss; see README.md."""
