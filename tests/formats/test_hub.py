"""Circuits on the hub, with a folder in place of the hub: what is pushed comes back, and every way to fail."""

from __future__ import annotations

import json
import shutil
from fnmatch import fnmatch
from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest
import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from launching import run_here

import gradpath as gp
from gradpath.errors import InputError, UsageError
from gradpath.formats.hub import parse_address
from gradpath.graph import Graph
from gradpath.recipe import Recipe

GRAPH = Graph(2, 2)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The hub's interface, which refuses arguments that ``HfApi`` does not have; branches are folders."""
    api, root = create_autospec(HfApi, instance=True), tmp_path / "hub"

    def branch(repo, revision):
        if not (root / repo).is_dir():
            raise RepositoryNotFoundError("no such repository", response=SimpleNamespace(headers={}, request=None))
        return root / repo / (revision or "main")

    def commit(repo, operations, *, commit_message, revision):
        for operation in operations:
            file = branch(repo, revision) / operation.path_in_repo
            file.parent.mkdir(parents=True, exist_ok=True)
            with operation.as_file() as content:
                file.write_bytes(content.read())
        return SimpleNamespace(commit_url=f"https://hub/{repo}/commit/1")

    def snapshot(repo, *, revision, allow_patterns):
        cached, source = tmp_path / f"cache-{revision}", branch(repo, revision)
        for file in source.rglob("*"):
            if any(fnmatch(str(file.relative_to(source)), pattern) for pattern in allow_patterns):
                (cached / file.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, cached / file.relative_to(source))
        return str(cached)

    api.root = root
    api.create_repo.side_effect = lambda repo, **_: (root / repo / "main").mkdir(parents=True, exist_ok=True)
    api.model_info.side_effect = lambda repo: SimpleNamespace(private=False)
    api.create_commit.side_effect = commit
    api.snapshot_download.side_effect = snapshot
    api.hf_hub_download.side_effect = lambda repo, name, revision: str(branch(repo, revision) / name)
    monkeypatch.setattr("gradpath.formats.hub.HfApi", lambda **_: api)
    return api


@pytest.fixture
def folder(tmp_path):
    """What find writes."""
    values = torch.randn(GRAPH.mask.shape, generator=torch.Generator().manual_seed(0)) * GRAPH.mask
    scores = gp.Scores(GRAPH, values, Recipe(model="smollm2", task="ioi", method="eap-ig", steps=5))
    out = tmp_path / "found"
    scores.save(out / "scores.safetensors")
    gp.select(scores, 20).save(out / "circuit.json")
    (out / "report.html").write_text("<p>")
    return out


def test_what_is_pushed_comes_back_bit_for_bit(hub, folder, tmp_path):
    pushed = run_here("push", folder, "me/ioi", "--json")
    assert pushed.code == 0, pushed.err
    assert pushed.json["files"] == ["README.md", "circuit.json", "scores.safetensors"]
    assert pushed.json["url"] == "https://hub/me/ioi/commit/1"
    assert run_here("pull", "me/ioi", "--out", tmp_path / "back").code == 0
    for name in ("circuit.json", "scores.safetensors"):
        assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes()
    card = (tmp_path / "back" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: gradpath\n")
    assert "ioi in smollm2, by eap-ig (5 steps)" in card


def test_commands_take_an_address_where_they_take_a_file(hub, folder, tmp_path, monkeypatch):
    run_here("push", folder, "me/ioi")
    monkeypatch.chdir(tmp_path)
    assert run_here("compare", "hf://me/ioi", folder / "circuit.json", "--json").json["jaccard_edges"] == 1
    assert run_here("show", "hf://me/ioi").out.strip() == "ioi.html"


def test_branches_folders_messages_and_ones_own_card(hub, folder, tmp_path):
    (folder / "README.md").write_text("My circuit.\n")
    run_here("push", folder, "me/many/a/b", "--revision", "v1", "--message", "one more")
    hub.create_branch.assert_called_once_with("me/many", branch="v1", exist_ok=True)
    assert hub.create_commit.call_args.kwargs["commit_message"] == "one more"
    assert (hub.root / "me/many/v1/a/b/README.md").read_text() == "My circuit.\n"
    assert gp.load_circuit("hf://me/many@v1/a/b") == gp.load_circuit("hf://me/many@v1/a/b/circuit.json")
    assert run_here("pull", "me/many/a/b", "--revision", "v1", "--out", tmp_path / "x").code == 0
    assert "there is no file" in run_here("pull", "me/many/a/b").error


def test_a_public_repository_does_not_become_private(hub, folder):
    ran = run_here("push", folder, "me/ioi", "--private")
    assert (ran.code, "exists and is public" in ran.error) == (1, True)
    hub.create_commit.assert_not_called()


def test_a_repository_that_is_not_there(hub, tmp_path):
    ran = run_here("pull", "me/nothing", "--out", tmp_path / "out")
    assert (ran.code, "the hub refused me/nothing (RepositoryNotFoundError" in ran.error) == (1, True)
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="the hub refused hf://me/nothing"):
        gp.load_circuit("hf://me/nothing")


def test_no_network(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for command in (["pull", "me/ioi", "--out", tmp_path / "out"], ["push", folder, "me/ioi"]):
        ran = run_here(*command)
        assert (ran.code, "Connection refused" in ran.error) == (1, True), ran.err
    assert not (tmp_path / "out").exists()


def test_only_json_and_safetensors_are_pulled(hub, folder, tmp_path):
    run_here("push", folder, "me/ioi")
    for name in ("edges.pkl", "setup.py", "deep/x.json"):
        (hub.root / "me/ioi/main" / name).parent.mkdir(exist_ok=True)
        (hub.root / "me/ioi/main" / name).write_text("{}")
    assert run_here("pull", "me/ioi", "--out", tmp_path / "out").code == 0
    names = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert names == ["README.md", "circuit.json", "scores.safetensors"]


@pytest.mark.parametrize("name", ["circuit.json", "scores.safetensors"])
def test_a_damaged_file_is_refused_and_nothing_is_written(hub, folder, tmp_path, name):
    run_here("push", folder, "me/ioi")
    (hub.root / "me/ioi/main" / name).write_bytes(b"{}")
    ran = run_here("pull", "me/ioi", "--out", tmp_path / "out")
    assert (ran.code, name in ran.error) == (1, True)
    assert not (tmp_path / "out").exists()


def test_a_damaged_folder_is_not_pushed(hub, folder):
    content = json.loads((folder / "circuit.json").read_text())
    content["edges"][0][1] = 99.0
    (folder / "circuit.json").write_text(json.dumps(content))
    assert "was changed or damaged after it was written" in run_here("push", folder, "me/ioi").error
    assert "there is no file" in run_here("push", folder / "nothing", "me/ioi").error
    hub.create_repo.assert_not_called()


@pytest.mark.parametrize(
    "text", ["ioi", "me/ioi/../x", "me/io i", "https://me/ioi", "me/ioi@v1@v2", "/me/ioi", "me//x", ""]
)
def test_what_is_not_an_address_is_refused(text):
    with pytest.raises(UsageError, match="is named owner/name"):
        parse_address(text)


def test_addresses():
    assert parse_address("me/ioi") == ("me/ioi", None, "")
    assert parse_address("hf://me/ioi@v1/a/b/") == ("me/ioi", "v1", "a/b/")
    assert parse_address("me/ioi", "v1") == ("me/ioi", "v1", "")
    with pytest.raises(UsageError, match="one @revision"):
        parse_address("me/ioi@v1", "v2")
