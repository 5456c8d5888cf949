"""Models that packages carry: found without importing, put together from parts, or left to the hub."""

from __future__ import annotations

import pytest

from gradpath.model import load
from gradpath.model.packaged import PACKAGED, Packaged, whole_file


@pytest.fixture
def in_parts(tmp_path, monkeypatch):
    """A model in two packages whose code must never run."""
    for number in (1, 2):
        data = tmp_path / f"some_model_part{number}" / "data"
        data.mkdir(parents=True)
        (data.parent / "__init__.py").write_text("raise ImportError('this must not be imported')")
        (data / f"model.gguf.part0{number}").write_bytes(bytes([number]) * 3)
    monkeypatch.syspath_prepend(tmp_path)
    return Packaged("some", "somebody/some", ("some-model-part1", "some-model-part2"), "some-model", "small")


def test_parts_are_found_in_order_and_become_one_file(in_parts, tmp_path):
    parts = in_parts.parts()
    assert [part.name for part in parts] == ["model.gguf.part01", "model.gguf.part02"]
    assert whole_file(parts, tmp_path).read_bytes() == b"\1\1\1\2\2\2"
    assert whole_file(parts[:1], tmp_path) == parts[0]


def test_a_model_with_a_part_missing_is_left_to_the_hub(in_parts, tmp_path, monkeypatch):
    (tmp_path / "some_model_part2" / "data" / "model.gguf.part02").unlink()
    assert in_parts.parts() == []
    monkeypatch.setitem(PACKAGED, "some", in_parts)
    assert load._locate("some") == ("somebody/some", None)


def test_an_interrupted_conversion_leaves_nothing_behind(in_parts, tmp_path, monkeypatch):
    class StoppedError(BaseException):
        """What a signal raises."""

    def interrupted(*_):
        raise StoppedError

    monkeypatch.setenv("GRADPATH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1")
    monkeypatch.setattr("gradpath.model.packaged.whole_file", interrupted)
    with pytest.raises(StoppedError):
        in_parts.local_folder()
    assert list((tmp_path / "cache").iterdir()) == []
