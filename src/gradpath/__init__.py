"""gradpath: find circuits in language models, and measure how much of the behaviour they keep."""

from __future__ import annotations

from gradpath._version import __version__ as __version__
