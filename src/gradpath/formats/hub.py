"""Circuits on the Hugging Face hub: push a folder, pull it, load a circuit by its address.

An address is ``hf://owner/name``, with ``@revision`` after the name and a folder or file at the end if needed::

    hf://owner/name                    circuit.json of the newest commit
    hf://owner/name@v1/ioi             circuit.json in the folder ioi, at the tag, branch or commit v1

Files of others cannot be trusted. Only JSON and safetensors are read or written, neither of which can contain code; a
folder with files that run code when they are opened is refused. Sizes are checked before anything is downloaded, and
every file is checked like a file on disk. All files of a pull come from one commit, and all or none are written. A push
is one commit, with a card (``README.md``) that is made from the circuit's provenance.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from gradpath._version import __version__
from gradpath.circuit import Circuit, load_circuit
from gradpath.errors import GradpathError, InputError, UsageError, reason, warn
from gradpath.model.cache import PACKAGED
from gradpath.runtime.files import ELSEWHERE, write_together
from gradpath.scores import load_scores

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CIRCUIT, CARD = "circuit.json", "README.md"
MOST_FILES = 1000
MOST_BYTES = {".json": 1 << 30, ".safetensors": 8 << 30, ".md": 1 << 20}  # of one file
# Opening one of these runs code that it may contain, or it is code.
RUNS_CODE = (
    *(".pkl", ".pickle", ".p", ".pt", ".pth", ".bin", ".ckpt", ".joblib", ".dill", ".npy", ".npz", ".msgpack"),
    *(".py", ".pyc", ".so", ".dll", ".dylib", ".exe", ".sh", ".h5", ".keras", ".onnx", ".pb"),
)
_ADDRESS = re.compile(r"(?:hf://)?([\w.-]+/[\w.-]+)(?:@([^/@]+))?(?:/([^@]*))?", re.ASCII)


@dataclass(frozen=True)
class Address:
    """A place on the hub.

    >>> parse_address("hf://owner/name@v1/ioi")
    Address(repo='owner/name', revision='v1', path='ioi')
    """

    repo: str
    revision: str | None = None
    path: str = ""

    def __str__(self) -> str:
        at = f"@{self.revision}" if self.revision else ""
        return f"{self.repo}{at}" + (f"/{self.path}" if self.path else "")

    def inside(self, name: str) -> str:
        """The path in the repository of a file in this folder."""
        return f"{self.path}/{name}" if self.path else name


def parse_address(text: str, revision: str | None = None) -> Address:
    """The address that a text means; ``revision`` is for a text that has none."""
    match = _ADDRESS.fullmatch(text)
    path = "" if match is None else (match[3] or "").strip("/")
    if match is None or not _is_plain(path or "x"):
        raise UsageError(
            f"a circuit on the hub is named owner/name, owner/name@revision or owner/name/folder: got {text!r}."
        )
    after_at = unquote(match[2]) if match[2] else None
    if after_at and revision and after_at != revision:
        raise UsageError(f"two revisions were given, {after_at} and {revision}: give one of them.")
    return Address(match[1], after_at or revision, path)


def _is_plain(path: str) -> bool:
    """Whether a path stays inside of its folder, on every system."""
    parts = path.split("/")
    return all(
        part not in ("", ".", "..") and not set(part) & set('\\:*?"<>|') and part.isprintable() for part in parts
    )


def download_circuit(text: str) -> Path:
    """Download the circuit at an address, into the cache of huggingface_hub.

    Args:
        text: The address. Without a file at its end, ``circuit.json`` is meant.

    Returns:
        The file in the cache.
    """
    address = parse_address(text)
    with _as_errors(address):
        api = _api()
        commit, files = _listing(api, address)
        path = address.path if address.path.endswith(".json") else address.inside(CIRCUIT)
        if path not in files:
            known = [name for name in files if PurePosixPath(name).name == CIRCUIT]
            hint = f" It has {', '.join(known[:10])}." if known else " It has no circuit.json at all."
            raise InputError(f"there is no {path} in {address.repo} on the hub.{hint}")
        return _download(api, replace(address, revision=commit), path, files)


def pull(text: str, out: Path | None = None, revision: str | None = None) -> tuple[Path, list[str]]:
    """Download a folder with a circuit, check its files, and write them: all or none.

    Args:
        text: The address of the folder.
        out: The folder to write to; by default one in ``out/`` with the last part of the address.
        revision: The branch, tag or commit.

    Returns:
        The folder, and the names of the files in it.
    """
    address = parse_address(text, revision)
    out = out or Path("out") / (address.path or address.repo).rpartition("/")[2]
    with _as_errors(address):
        api = _api()
        commit, files = _listing(api, address)
        prefix = address.inside("")
        below = [path for path in files if path.startswith(prefix)]
        if unsafe := [path for path in below if path.lower().endswith(RUNS_CODE)]:
            raise InputError(
                f"{address} has files that can run code when they are opened ({', '.join(unsafe[:3])}), so nothing was "
                "downloaded. A circuit consists of JSON and safetensors files."
            )
        names = [path.removeprefix(prefix) for path in below if "/" not in path.removeprefix(prefix)]
        to_pull = [name for name in names if name == CARD or name.endswith((".json", ".safetensors"))]
        if CIRCUIT not in to_pull:
            folders = sorted(str(PurePosixPath(path).parent) for path in files if path.endswith(f"/{CIRCUIT}"))
            hint = f" Name one of its folders: {', '.join(folders[:10])}." if folders else ""
            raise InputError(f"there is no {CIRCUIT} in {address} on the hub.{hint}")
        if ignored := sorted(set(names) - set(to_pull) - {".gitattributes"}):
            warn(f"only JSON and safetensors of {address} are pulled, and these files are left: {', '.join(ignored)}.")
        pinned = replace(address, revision=commit)
        cached = {name: _download(api, pinned, address.inside(name), files) for name in to_pull}
    for name, file in cached.items():
        _check(file, name, f"{name} of {address}")
    with write_together(out) as draft:
        for name, file in cached.items():
            shutil.copyfile(file, draft / name)
    return out, sorted(cached)


def push(
    folder: Path, text: str, *, private: bool = False, revision: str | None = None, message: str | None = None
) -> tuple[str, list[str]]:
    """Upload a folder that ``find`` has written, as one commit, with a card made from the circuit's provenance.

    Args:
        folder: The folder; its JSON and safetensors files are uploaded, and its README.md in place of the card.
        text: The address; the repository is created if necessary.
        private: Whether a new repository is private. An existing one that is public is refused.
        revision: A branch, created if necessary.
        message: The commit message.

    Returns:
        The address of the commit in a browser, and the names of the files.
    """
    from huggingface_hub import CommitOperationAdd, get_token

    address = parse_address(text, revision)
    if not folder.is_dir():
        raise InputError(f"push takes the folder that find --out wrote: {folder} is not a folder.")
    circuit = load_circuit(folder / CIRCUIT)
    files = sorted(file for file in folder.iterdir() if file.suffix in (".json", ".safetensors") and file.is_file())
    for file in files:
        _check(file, file.name, str(file))
    contents: dict[str, str | bytes] = {file.name: str(file) for file in files}
    user_card = folder / CARD
    contents[CARD] = str(user_card) if user_card.is_file() else card(circuit, str(address), list(contents)).encode()
    if get_token() is None:
        raise InputError("to push, the hub needs to know who you are: run `hf auth login`, or set HF_TOKEN to a token.")
    with _as_errors(address):
        api = _api()
        api.create_repo(address.repo, private=private or None, exist_ok=True)
        if private and not api.model_info(address.repo).private:
            raise InputError(f"{address.repo} exists and is public, and --private was given. Nothing was uploaded.")
        if address.revision not in (None, "main"):
            api.create_branch(address.repo, branch=str(address.revision), exist_ok=True)
        commit = api.create_commit(
            address.repo,
            [CommitOperationAdd(address.inside(name), content) for name, content in contents.items()],
            commit_message=message or f"Add a circuit: {circuit.provenance}"[:200],
            revision=address.revision,
        )
    return str(commit.commit_url), sorted(contents)


def _api() -> HfApi:
    from huggingface_hub import HfApi

    # Without an endpoint, huggingface_hub would use the value that the variable had when it was imported.
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="gradpath", library_version=__version__)


def _listing(api: HfApi, address: Address) -> tuple[str, dict[str, int | None]]:
    """The commit of a revision, and its files with their sizes."""
    info = api.model_info(address.repo, revision=address.revision, files_metadata=True, timeout=30)
    files = {file.rfilename: file.size for file in info.siblings or []}
    if len(files) > MOST_FILES:
        raise InputError(f"{address} has {len(files):,} files: only repositories of up to {MOST_FILES:,} are read.")
    if wrong := [path for path in files if not _is_plain(path)]:
        raise InputError(f"{address} has a file whose name leads elsewhere, {wrong[0]!r}: nothing was downloaded.")
    if info.sha is None:
        raise InputError(f"the hub does not say which commit {address} is.")
    return info.sha, files


def _download(api: HfApi, address: Address, path: str, sizes: Mapping[str, int | None]) -> Path:
    """A file at a commit, in the cache; its size is checked before and after."""
    _check_size(path, sizes[path] or 0)
    file = Path(api.hf_hub_download(address.repo, path, revision=address.revision))
    _check_size(path, file.stat().st_size)
    return file


def _check_size(path: str, size: int) -> None:
    most = MOST_BYTES.get(PurePosixPath(path).suffix, 0)
    if size > most:
        raise InputError(f"{path} has {size:,} bytes: such a file may have at most {most:,}.")


def _check(file: Path, name: str, title: str) -> None:
    """Refuse a file that gradpath could not read later; ``title`` names it in the error."""
    try:
        if name == CIRCUIT:
            load_circuit(file)
        elif name.endswith(".safetensors"):
            load_scores(file)
        elif name.endswith(".json"):
            json.loads(file.read_text(encoding="utf-8"))
    except (GradpathError, OSError, ValueError, RecursionError) as problem:
        message = str(problem) if isinstance(problem, GradpathError) else reason(problem)
        # A path in the cache means nothing to the user.
        raise InputError(f"{title} cannot be used: {message.replace(str(file), 'it')}") from None


@contextmanager
def _as_errors(address: Address) -> Iterator[None]:
    """Turn what huggingface_hub raises into one sentence."""
    from huggingface_hub import errors

    try:
        yield
    except GradpathError:
        raise
    except errors.RevisionNotFoundError:
        raise InputError(f"{address.repo} has no branch, tag or commit {address.revision!r} on the hub.") from None
    except errors.GatedRepoError:
        raise InputError(
            f"{address.repo} asks its readers to agree to terms: do so on its page, then run `hf auth login`."
        ) from None
    except errors.RepositoryNotFoundError:
        raise InputError(
            f"there is no repository {address.repo} on the hub, or it is private and you are not logged in (`hf auth "
            "login`) as someone who may read it."
        ) from None
    except errors.HfHubHTTPError as problem:
        code = getattr(problem.response, "status_code", None)
        raise InputError(f"the hub refused {address.repo}: {_MEANING.get(code, f'{reason(problem)}.')}") from None
    except errors.HFValidationError as problem:
        raise UsageError(f"{address.repo} is not a name that the hub allows: {reason(problem)}.") from None
    except Exception as raised:
        # A failed upload is a RuntimeError that was caused by the failure.
        cause = raised.__cause__ if isinstance(raised, RuntimeError) and raised.__cause__ is not None else raised
        has_no_number = isinstance(cause, OSError) and cause.errno is None  # an error of this machine has a number
        if has_no_number or type(cause).__module__.partition(".")[0] in _NETWORK:
            where = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
            raise InputError(
                f"{where} could not be reached, or the connection broke ({reason(cause)}). Nothing was written; try "
                "again when there is a connection."
            ) from None
        raise


_NETWORK = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "huggingface_hub", "hf_xet")
_MEANING: Mapping[int | None, str] = {
    401: "your token is not valid. Run `hf auth login`.",
    403: "your token does not allow this. Use one that may write to this repository.",
}


def card(circuit: Circuit, address: str, files: Sequence[str]) -> str:
    """The card's text.

    Args:
        circuit: The circuit.
        address: Its place on the hub.
        files: The names of the other files in its folder.

    Returns:
        Markdown after a block of YAML metadata, whose values are written as JSON.
    """
    provenance, base = circuit.provenance, _hub_name(circuit.provenance.model)
    tags = ["gradpath", "mechanistic-interpretability", "circuit", *filter(None, (provenance.task, provenance.method))]
    metadata: dict[str, Any] = {"library_name": "gradpath", "tags": tags}
    if base is not None:
        metadata["base_model"] = base
    title = " in ".join(_cell(part) for part in (provenance.task or "A circuit", base or provenance.model) if part)
    return "\n".join(
        [
            "---",
            *(f"{name}: {json.dumps(value)}" for name, value in metadata.items()),
            "---",
            "",
            f"# {title}",
            "",
            f"A circuit of {len(circuit):,} edges, found with gradpath. Its files are {', '.join(files)}.",
            "",
            "```python",
            "import gradpath as gp",
            "",
            f'circuit = gp.load_circuit("hf://{address}")',
            "```",
            "",
            "```bash",
            f"gradpath pull {address}",
            "```",
            "",
            "| made with | |",
            "|---|---|",
            *(f"| {name} | {_cell(value)} |" for name, value in _facts(circuit).items() if value not in (None, "")),
            "",
        ]
    )


def _facts(circuit: Circuit) -> dict[str, Any]:
    """How the circuit was made, in the order of the card's table."""
    provenance = circuit.provenance
    return {
        "model": _hub_name(provenance.model) or provenance.model,
        "weights": provenance.weights,
        "task": provenance.task,
        "metric": provenance.metric,
        "method": provenance.method,
        "steps": provenance.steps,
        "options": ", ".join(f"{name}={value}" for name, value in provenance.options.items()),
        "selection": provenance.how,
        "ablation": provenance.ablation,
        "examples attributed": provenance.examples,
        "seed": provenance.seed,
        "edges": f"{len(circuit):,} of {circuit.n_possible:,}",
        "edges requested": provenance.edges_asked,
        "plug-ins": ", ".join(provenance.plugins),
        "gradpath": provenance.version,
    }


def _hub_name(model: str | None) -> str | None:
    """The model's name on the hub, if it has one."""
    if model in PACKAGED:
        return PACKAGED[model].hub_name
    is_name = model is not None and model.count("/") == 1 and not model.startswith((".", "/", "~", ELSEWHERE))
    return model if is_name and not os.path.exists(str(model)) else None


def _cell(value: Any) -> str:
    """A value in a table, as one line of plain text: a file can put anything into its provenance."""
    text = " ".join(str(value).split())[:200]
    for sign in ("\\", "|", "`", "*", "_", "[", "<"):
        text = text.replace(sign, f"\\{sign}")
    return text
