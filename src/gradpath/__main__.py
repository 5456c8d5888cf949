"""``python -m gradpath``, for where the command is not on the path."""

from gradpath.cli import main

main()
