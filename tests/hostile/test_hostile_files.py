"""Damaged and malicious files end in one clear sentence or in a result that can be used; never otherwise.

``make fuzz`` runs ten thousand cases, the ordinary tests a few hundred (``GRADPATH_FUZZ`` is their number).
"""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from damage import damaged_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from readers import READERS, Reader

from gradpath.errors import GradpathError

CASES = int(os.environ.get("GRADPATH_FUZZ", "120"))
MOST_MEMORY = 1 << 30  # bytes above what is in use before: a file of a few kilobytes has no claim to more
MOST_SECONDS = 20  # of CPU time for one file


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    """Address space for little more than there is now: what asks for more fails at once, and is seen."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 4 * MOST_MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def try_file(reader: Reader, file: Path) -> str:
    """Read the file, which has to end well: the sentence, or nothing where it could be used."""
    begin, memory = time.process_time(), peak()
    try:
        reader.use(file)
        said = ""
    except GradpathError as problem:
        said = str(problem)
        assert said.rstrip().endswith((".", "?", ")")), said
        first, *rest = said.split("\n")  # a list where several rows are wrong
        assert not rest or (first.endswith(":") and all(line.startswith("  ") for line in rest)), said
        assert len(said) < 1000, f"{len(said)} characters are no sentence: {said[:300]}"
    assert time.process_time() - begin < MOST_SECONDS
    assert peak() - memory < MOST_MEMORY
    return said


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_damaged_file_ends_in_a_sentence_or_a_result(name, tmp_path):
    reader = READERS[name]
    whole = reader.valid(tmp_path)
    file = tmp_path / f"file{reader.suffix}"
    file.write_bytes(whole)
    assert try_file(reader, file) == ""
    ends = {"refused": 0, "read": 0}

    @settings(
        max_examples=max(5, reader.share * CASES // 10_000),
        deadline=None,
        database=None,
        derandomize=CASES <= 120,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(damaged_bytes(whole), reader.inside(whole)))
    def hold(content: bytes) -> None:
        file.write_bytes(content)
        ends["refused" if try_file(reader, file) else "read"] += 1

    hold()
    assert ends["refused"], f"no damage was ever noticed: {ends}"


@pytest.mark.parametrize("name", [name for name, reader in READERS.items() if reader.sealed])
def test_a_flipped_bit_never_gives_another_result(name, tmp_path):
    """It cannot hold for what users bring: a flipped bit in a weight of their checkpoint is another model."""
    reader, draw, refused = READERS[name], random.Random(name if CASES <= 120 else None), 0
    whole = reader.valid(tmp_path)
    file = tmp_path / f"file{reader.suffix}"
    file.write_bytes(whole)
    right = reader.use(file)
    for _ in range(CASES // 10):
        # Half of the time near the front, where names, sizes and digests are.
        at = draw.randrange(len(whole) if draw.random() < 0.5 else min(len(whole), 2000))
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :])
        try:
            assert reader.use(file) == right
        except GradpathError:
            refused += 1
    assert refused
