"""Paths: what tells one method from another. ``registry`` says what a path is; each other file has some."""

from gradpath.paths import combined, descent, line, monotone, nodes, relp
from gradpath.paths.registry import Look, Pair, Path, Points, Visit, find_path, path

__all__ = [
    "Look",
    "Pair",
    "Path",
    "Points",
    "Visit",
    "combined",
    "descent",
    "find_path",
    "line",
    "monotone",
    "nodes",
    "path",
    "relp",
]
