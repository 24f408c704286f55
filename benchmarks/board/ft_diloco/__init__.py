"""torchft's DiLoCo over gloo between two namespaces; see README.md."""
