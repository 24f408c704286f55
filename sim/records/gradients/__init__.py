"""What was measured about the gradients of a run."""
