"""Methods that are no paths, one file each; ``find_method`` finds these and the paths by name."""

import gradpath.paths  # noqa: F401  (its import registers them)
from gradpath.method import METHODS, Method, find_method
from gradpath.methods import activations, atp_star, exact

__all__ = ["METHODS", "Method", "activations", "atp_star", "exact", "find_method"]
