"""The registry: order, collisions, names that are nearly right, and what may be registered again."""

from __future__ import annotations

from hashlib import sha256

import pytest

import gradpath as gp
from gradpath import registry
from gradpath.attribution.methods import METHODS
from gradpath.errors import GradpathWarning, InputError, UsageError
from gradpath.registry import load_function, load_installed_plugins, load_plugin, loaded_plugins
from gradpath.selection import SELECTIONS
from gradpath.tasks import METRICS


def test_a_built_in_name_cannot_be_taken():
    built_in = METHODS["eap-ig"]
    with pytest.raises(UsageError, match="there is already a method 'eap-ig'"):

        @gp.path("eap-ig")
        def mine(pair):
            yield pair.clean

    assert METHODS["eap-ig"] is built_in


def test_a_cell_that_is_run_twice_replaces_its_own_path():
    def define(fraction):
        @gp.path("halfway")
        def halfway(pair):
            """A point between the prompts."""
            yield pair.clean + fraction * (pair.corrupted - pair.clean)

        return halfway

    try:
        define(0.5)
        second = define(0.25)
        assert METHODS["halfway"].function is second
        with pytest.raises(UsageError, match="there is already a method 'halfway'"):

            @gp.path("halfway")
            def other(pair):
                yield pair.clean
    finally:
        METHODS.remove("halfway")
    assert "halfway" not in METHODS


def test_a_file_registers_its_entries_once(tmp_path):
    file = tmp_path / "first_logit.py"
    file.write_text(
        "from gradpath.tasks import metric\n\n@metric('first-logit')\ndef first(x, labels):\n    return x[:, 0]\n"
    )
    try:
        assert load_plugin(file) is load_plugin(str(file))
        assert METRICS["first-logit"] is load_function(f"{file}:first")
        assert loaded_plugins()["first_logit.py"] == sha256(file.read_bytes()).hexdigest()
    finally:
        METRICS.remove("first-logit")


@pytest.mark.parametrize(("content", "words"), [("1 / 0", "ZeroDivisionError"), ("def (", "SyntaxError")])
def test_a_file_that_fails_is_named_with_its_reason(tmp_path, content, words):
    file = tmp_path / "broken.py"
    file.write_text(content)
    with pytest.raises(InputError, match=rf"the plug-in .*broken\.py cannot be run \({words}"):
        load_plugin(file)


def test_an_installed_package_adds_entries_and_a_broken_one_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "good_plugin.py").write_text(
        "from gradpath.tasks import metric\n\n@metric('installed')\ndef one(logits, labels):\n    return logits[:, 0]\n"
    )
    (tmp_path / "bad_plugin.py").write_text("raise RuntimeError('too old')\n")
    about = tmp_path / "some_package-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: some-package\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text("[gradpath.plugins]\nbad = bad_plugin\ngood = good_plugin\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_INSTALLED", [])
    registry._entry_points.cache_clear()
    try:
        with pytest.warns(GradpathWarning, match=r"plug-in 'bad' of some-package is left out.*too old"):
            load_installed_plugins()
        assert "installed" in METRICS
        assert loaded_plugins()["some-package"] == "1.2"
    finally:
        METRICS.remove("installed")
        registry._entry_points.cache_clear()


@pytest.mark.parametrize("entries", [METHODS, SELECTIONS], ids=["methods", "selections"])
def test_methods_and_selections_describe_and_check_their_options_alike(entries):
    for name, entry in entries.items():
        assert entry.about == entry.about.strip() != ""
        assert entry.options({}) == entry.defaults
        with pytest.raises(UsageError, match=f"the {entries.kind} '{name}' has no option 'zz'"):
            entry.options({"zz": 1})
        for option, default in entry.defaults.items():
            assert entry.options({option: default}) == entry.defaults
            with pytest.raises(UsageError, match=f"the option {option} of {name} must be"):
                entry.options({option: {}})
