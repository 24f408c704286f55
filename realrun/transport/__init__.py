"""Who carries the bytes of a real run: gloo and NCCL."""
