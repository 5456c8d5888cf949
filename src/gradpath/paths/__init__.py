"""Paths: what tells one method from another. ``registry`` says what a path is; each other file has some."""

from gradpath.paths import combined, descent, line, monotone
from gradpath.paths.registry import PATHS, Look, Pair, Path, Points, Visit, find_path, path

__all__ = [
    "PATHS",
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
    "path",
]
