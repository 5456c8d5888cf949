"""Circuits on the Hugging Face hub: push a folder, pull it, load a circuit by its address.

An address is ``hf://owner/name``, with ``@revision`` after the name and a folder at the end if needed. Only JSON and
safetensors are read, which contain no code, and each file is checked like one on disk.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, ModelCardData

from gradpath.circuit import Circuit, load_circuit
from gradpath.errors import GradpathError, InputError, UsageError, reason
from gradpath.runtime.files import write_together
from gradpath.scores import load_scores

CIRCUIT, CARD = "circuit.json", "README.md"
FILES = ("*.json", "*.safetensors", CARD)
_ADDRESS = re.compile(r"(?:hf://)?([\w.-]+/[\w.-]+)(?:@([^/@]+))?((?:/(?!\.)[\w.-]+)*)/?", re.ASCII)


def parse_address(text: str, revision: str | None = None) -> tuple[str, str | None, str]:
    """The repository, the revision, and the folder with a slash at its end, or empty."""
    match = _ADDRESS.fullmatch(text.removesuffix(f"/{CIRCUIT}"))
    if match is None or (match[2] and revision):
        raise UsageError(f"a circuit on the hub is named owner/name, with one @revision and a /folder: got {text!r}.")
    return match[1], match[2] or revision, f"{match[3][1:]}/" if match[3] else ""


def download_circuit(text: str) -> Path:
    """The ``circuit.json`` at an address, in the cache of huggingface_hub."""
    repo, revision, folder = parse_address(text)
    with _hub(text) as api:
        return Path(api.hf_hub_download(repo, folder + CIRCUIT, revision=revision))


def pull(text: str, out: Path | None = None, revision: str | None = None) -> tuple[Path, list[str]]:
    """Download a folder with a circuit, to ``out/NAME`` unless told: all files or none. Return it and their names."""
    repo, revision, folder = parse_address(text, revision)
    with _hub(text) as api:
        snapshot = api.snapshot_download(repo, revision=revision, allow_patterns=[folder + name for name in FILES])
    out, (_, files) = out or Path("out", Path(repo, folder).name), _checked(Path(snapshot, folder))
    with write_together(out) as draft:
        for file in files:
            shutil.copyfile(file, draft / file.name)
    return out, [file.name for file in files]


def push(folder: Path, text: str, private: bool, revision: str | None, message: str | None) -> tuple[str, list[str]]:
    """Upload a folder that ``find`` wrote, as one commit. Return the commit's address and the names of the files."""
    repo, revision, inside = parse_address(text, revision)
    tags = ModelCardData(library_name="gradpath", tags=["gradpath", "circuit"]).to_yaml()
    circuit, paths = _checked(folder)
    files: dict[str, str | bytes] = {CARD: f"---\n{tags}\n---\n\n```\n{circuit}\n```\n".encode()}
    files |= {file.name: str(file) for file in paths}
    with _hub(text) as api:
        api.create_repo(repo, private=private or None, exist_ok=True)
        if private and not api.model_info(repo).private:
            raise InputError(f"{repo} exists and is public, and --private was given. Nothing was uploaded.")
        if revision:
            api.create_branch(repo, branch=revision, exist_ok=True)
        added = [CommitOperationAdd(inside + name, content) for name, content in files.items()]
        commit = api.create_commit(repo, added, commit_message=message or "Add a circuit", revision=revision)
    return str(commit.commit_url), sorted(files)


def _checked(folder: Path) -> tuple[Circuit, list[Path]]:
    """The circuit of a folder and the files that go with it."""
    for file in folder.glob("*.safetensors"):
        load_scores(file)
    return load_circuit(folder / CIRCUIT), sorted(file for pattern in FILES for file in folder.glob(pattern))


@contextmanager
def _hub(address: str) -> Iterator[HfApi]:
    """The hub; what huggingface_hub, its HTTP client or its uploader raise becomes one sentence."""
    try:
        yield HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="gradpath")
    except GradpathError:
        raise
    except Exception as problem:
        raise InputError(f"the hub refused {address} ({reason(problem)}). Check name, login and connection.") from None
