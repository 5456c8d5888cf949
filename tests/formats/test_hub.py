"""Circuits on the hub, against a stand-in of its HTTP API on loopback: what comes back, and every way to fail."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
import yaml
from hub_server import TOKEN, Hub
from launching import run_here

import gradpath as gp
from gradpath.circuit import Circuit
from gradpath.errors import GradpathError, GradpathWarning, InputError, UsageError
from gradpath.formats import hub as hub_module
from gradpath.formats.hub import Address, card, parse_address
from gradpath.graph import Graph

# huggingface_hub uploads large files with an argument that its HTTP library has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:Use .content=:DeprecationWarning")
GRAPH = Graph(2, 2)
ABOUT = {
    "version": "0.2.0",
    "model": "smollm2",
    "weights": "abc",
    "task": "ioi",
    "method": "eap-ig",
    "steps": 5,
    "options": {"end": "clean"},
    "data": {"metric": "logit-difference", "seed": 3},
    "examples": 10,
    "selection": {"how": "top", "edges_asked": 20},
}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The stand-in, with a cache and a token of this test's own."""
    made = Hub()
    monkeypatch.setenv("HF_ENDPOINT", made.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path):
    """What find writes."""
    values = torch.randn(GRAPH.mask.shape, generator=torch.Generator().manual_seed(0)) * GRAPH.mask
    scores = gp.Scores(GRAPH, values, ABOUT)
    out = tmp_path / "found"
    scores.save(out / "scores.safetensors")
    gp.select(scores, 20, how="top").save(out / "circuit.json")
    (out / "report.html").write_text("<p>")
    return out


def files_of(hub: Hub, folder: Path, **more: bytes) -> dict[str, bytes]:
    names = ("circuit.json", "scores.safetensors")
    return {**{name: (folder / name).read_bytes() for name in names}, **more}


def test_what_is_pushed_comes_back_bit_for_bit(hub, folder, tmp_path):
    pushed = run_here("push", folder, "me/ioi", "--json")
    assert pushed.code == 0, pushed.err
    assert pushed.json["files"] == ["README.md", "circuit.json", "scores.safetensors"]
    assert pushed.json["url"].startswith(f"{hub.address}/me/ioi/commit/")
    pulled = run_here("pull", "me/ioi", "--out", tmp_path / "back")
    assert pulled.code == 0, pulled.err
    for name in ("circuit.json", "scores.safetensors"):
        assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes()
    circuit = gp.load_circuit("hf://me/ioi")
    assert circuit == gp.load_circuit(folder / "circuit.json")
    assert hub.uploads, "the scores went as a large file"


def test_commands_take_an_address_where_they_take_a_file(hub, folder, tmp_path, monkeypatch):
    hub.add("me/ioi", files_of(hub, folder))
    monkeypatch.chdir(tmp_path)
    same = run_here("compare", "hf://me/ioi", folder / "circuit.json", "--json")
    assert same.json["jaccard_edges"] == 1
    assert same.json["file_a"] == "hf://me/ioi"
    assert run_here("show", "hf://me/ioi").out.strip() == "ioi.html"
    assert Path("ioi.html").is_file()


def test_the_card_says_how_the_circuit_was_made(hub, folder):
    run_here("push", folder, "me/ioi")
    text = hub.repositories["me/ioi"].commits[hub.repositories["me/ioi"].branches["main"]]["README.md"].decode()
    metadata = yaml.safe_load(text.split("---")[1])
    assert metadata["library_name"] == "gradpath"
    assert metadata["base_model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert {"ioi", "eap-ig"} <= set(metadata["tags"])
    for line in ("| task | ioi |", "| method | eap-ig |", "| seed | 3 |", "| selection | top |", "| steps | 5 |"):
        assert line in text
    assert 'gp.load_circuit("hf://me/ioi")' in text


def test_a_hostile_provenance_stays_inside_of_the_card():
    index, scores = torch.tensor([[0, GRAPH.logits]]), torch.ones(1)
    about = {"model": "a\n---\nx: y", "task": "<script>|", "method": 'e"\n- z', "options": 3, "data": [], "plugins": 1}
    text = card(Circuit(GRAPH, index, scores, about), "me/x", ["circuit.json"])
    metadata = yaml.safe_load(text.split("\n---\n")[0])
    assert metadata.keys() == {"library_name", "tags"}
    assert "<script>" not in text.split("\n---\n", 1)[1].replace("\\<script>", "")
    assert "a --- x: y" in text


def test_branches_folders_messages_and_ones_own_card(hub, folder, tmp_path):
    (folder / "README.md").write_text("---\ntags: [mine]\n---\nMy circuit.\n")
    run_here("push", folder, "me/many/a/b", "--revision", "v1", "--message", "one more", "--private")
    repository = hub.repositories["me/many"]
    assert repository.private
    assert repository.messages[-1] == "one more"
    assert "a/b/circuit.json" not in repository.commits[repository.branches["main"]]
    stored = repository.commits[repository.branches["v1"]]
    assert stored["a/b/README.md"].endswith(b"My circuit.\n")
    assert len(gp.load_circuit("hf://me/many@v1/a/b")) == len(
        gp.load_circuit(f"hf://me/many@{repository.branches['v1']}/a/b/circuit.json")
    )
    assert run_here("pull", "me/many/a/b", "--revision", "v1", "--out", tmp_path / "x").code == 0
    for address, words in {
        "me/many": "there is no circuit.json in me/many on the hub",
        "me/many@v1": "Name one of its folders: a/b",
        "me/many@v2": "has no branch, tag or commit 'v2'",
    }.items():
        assert words in run_here("pull", address).error
    with pytest.raises(InputError, match=r"there is no circuit.json in me/many on the hub. It has a/b/circuit.json"):
        gp.load_circuit("hf://me/many@v1")


def test_a_public_repository_does_not_become_private(hub, folder):
    hub.add("me/ioi", {})
    ran = run_here("push", folder, "me/ioi", "--private")
    assert (ran.code, "exists and is public" in ran.error) == (1, True)
    assert hub.repositories["me/ioi"].messages == ["first"]


def test_nobody_pushes_without_a_token_or_with_a_wrong_one(hub, folder, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    assert "your token is not valid. Run `hf auth login`." in run_here("push", folder, "me/ioi").error
    monkeypatch.delenv("HF_TOKEN")
    ran = run_here("push", folder, "me/ioi")
    assert (ran.code, "set HF_TOKEN to a token" in ran.error) == (1, True)
    assert hub.repositories == {}


@pytest.mark.parametrize("token", [TOKEN, None])
def test_a_repository_that_is_not_there(hub, tmp_path, monkeypatch, token):
    if token is None:
        monkeypatch.delenv("HF_TOKEN")
    ran = run_here("pull", "me/nothing", "--out", tmp_path / "out")
    assert (ran.code, "there is no repository me/nothing on the hub" in ran.error) == (1, True)
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="there is no repository me/nothing"):
        gp.load_circuit("hf://me/nothing")


def test_no_network(hub, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for command in (["pull", "me/ioi", "--out", tmp_path / "out"], ["push", folder, "me/ioi"]):
        ran = run_here(*command)
        assert (ran.code, "http://127.0.0.1:9 could not be reached" in ran.error) == (1, True), ran.err
    assert not (tmp_path / "out").exists()


def test_a_download_that_breaks_off_leaves_nothing_and_can_be_repeated(hub, folder, tmp_path):
    hub.add("me/ioi", files_of(hub, folder))
    hub.cut_after = 100
    ran = run_here("pull", "me/ioi", "--out", tmp_path / "out")
    assert (ran.code, "the connection broke" in ran.error) == (1, True), ran.err
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="connection broke"):
        gp.load_circuit("hf://me/ioi")
    hub.cut_after = None
    assert run_here("pull", "me/ioi", "--out", tmp_path / "out").code == 0


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


@pytest.mark.parametrize("name", ["edges.pkl", "deep/in/weights.PT", "setup.py"])
def test_a_folder_with_code_in_it_is_refused_before_anything_is_downloaded(hub, folder, tmp_path, name):
    hub.add("me/ioi", files_of(hub, folder, **{name: pickle.dumps(Trap())}))
    ran = run_here("pull", "me/ioi", "--out", tmp_path / "out")
    assert ran.code == 1
    assert f"can run code when they are opened ({name}), so nothing was downloaded" in ran.error
    assert not (tmp_path / "out").exists()
    assert not any("resolve" in request for request in hub.requests)


def test_other_files_are_left_and_named(hub, folder, tmp_path):
    hub.add("me/ioi", files_of(hub, folder, **{"report.html": b"<script>", "figure.png": b""}))
    with pytest.warns(GradpathWarning, match=r"these files are left: figure.png, report.html"):
        hub_module.pull("me/ioi", tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["circuit.json", "scores.safetensors"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"circuit.json": b"{}"}, 'circuit.json of me/ioi cannot be used: .*no "gradpath_circuit"'),
        ({"circuit.json": b"[" * 100_000}, "circuit.json of me/ioi cannot be used"),
        ({"scores.safetensors": b"\x80\x04pickle"}, "scores.safetensors of me/ioi cannot be used"),
        ({"notes.json": b"\xff"}, "notes.json of me/ioi cannot be used"),
        ({"../../evil.json": b"{}"}, "a file whose name leads elsewhere, '../../evil.json'"),
        ({"a\\b.json": b"{}"}, "a file whose name leads elsewhere"),
        ({f"{i}.json": b"" for i in range(1001)}, "only repositories of up to 1,000 are read"),
    ],
)
def test_damaged_and_hostile_repositories_are_refused_and_nothing_is_written(hub, folder, tmp_path, files, words):
    hub.add("me/ioi", {**files_of(hub, folder), **files})
    with pytest.raises(InputError, match=words):
        hub_module.pull("me/ioi", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_too_large_is_not_downloaded(hub, folder, tmp_path, monkeypatch):
    hub.add("me/ioi", files_of(hub, folder))
    hub.claimed["circuit.json"] = 1 << 40
    with pytest.raises(InputError, match=r"circuit.json has 1,099,511,627,776 bytes: such a file may have at most"):
        gp.load_circuit("hf://me/ioi")
    assert not any("resolve" in request for request in hub.requests)
    hub.claimed["circuit.json"] = 1  # the hub may be wrong
    monkeypatch.setitem(hub_module.MOST_BYTES, ".json", 50)
    with pytest.raises(InputError, match="such a file may have at most 50"):
        gp.load_circuit("hf://me/ioi")


def test_a_damaged_folder_is_not_pushed(hub, folder):
    content = json.loads((folder / "circuit.json").read_text())
    content["edges"][0][1] = 99.0
    (folder / "circuit.json").write_text(json.dumps(content))
    assert "was changed or damaged after it was written" in run_here("push", folder, "me/ioi").error
    (folder / "circuit.json").unlink()
    assert "there is no file" in run_here("push", folder, "me/ioi").error
    for path in (folder / "scores.safetensors", folder / "nothing"):
        assert f"push takes the folder that find --out wrote: {path} is not" in run_here("push", path, "me/ioi").error
    assert hub.requests == []


@pytest.mark.parametrize(
    "text", ["ioi", "me/ioi/../x", "me/io i", "https://me/ioi", "me/ioi@v1@v2", "/me/ioi", "me//x", ""]
)
def test_what_is_not_an_address_is_refused(text):
    with pytest.raises(UsageError, match="is named owner/name"):
        parse_address(text)


def test_addresses():
    assert parse_address("me/ioi") == Address("me/ioi")
    assert parse_address("hf://me/ioi@refs%2Fpr%2F1/a/") == Address("me/ioi", "refs/pr/1", "a")
    assert parse_address("me/ioi", "v1") == Address("me/ioi", "v1")
    with pytest.raises(UsageError, match="two revisions were given"):
        parse_address("me/ioi@v1", "v2")
    assert issubclass(UsageError, GradpathError)
