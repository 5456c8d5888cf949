"""The built-in paths: the points at which a method takes its gradients."""
