"""``gradpath check``: compare what is computed for a model with transformers and with a slow reference."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from gradpath import defaults
from gradpath.cli import options as opt
from gradpath.cli.progress import Screen, print_result

if TYPE_CHECKING:
    import torch

    from gradpath.model.transformer import Transformer
    from gradpath.selfcheck import Speed


@click.command(name="check")
@opt.model_option
@click.option(
    "--task", default=defaults.TASK, show_default=True, help="The task to take prompts from (gradpath ls tasks)."
)
@click.option("--examples", type=click.IntRange(min=1), default=2, show_default=True, help="How many pairs of prompts.")
@opt.plugin_option
@opt.json_option
@opt.load_options
def command(task: str, examples: int, as_json: bool, **given: Any) -> None:
    """Check a model's logits, scores and circuits against transformers and a plain, slow reference.

    With --device, scores and circuits are also compared with those on the CPU, and a table shows how fast both are.

    \b
    gradpath check --model smollm2
    gradpath check --model ./my-model --dtype bfloat16
    gradpath check --model smollm2 --device cuda --examples 20
    """
    from gradpath.model.load import load_original
    from gradpath.selfcheck import Speed, checks, device_checks
    from gradpath.tasks import load_task
    from gradpath.tasks.load import check_task

    check_task(task)
    loading, screen = opt.pick(opt.ModelOptions, given), Screen()
    model, loaded = loading.model, loading.load()
    prompts = load_task(task, loaded, n=examples)
    with screen.waiting("loading it with transformers"):
        original = load_original(model, loaded.dtype, trust_remote_code=loading.trust_remote_code)
    done, speeds = [], list[Speed]()
    steps = [checks(loaded, prompts, original), device_checks(loaded, prompts) if loading.device else ()]
    with screen.waiting("checking"):
        for check in chain(*steps):
            if isinstance(check, Speed):
                speeds.append(check)
                continue
            done.append(check)
            if not as_json:
                sign = "ok    " if check.passed else "WRONG "
                print_result(f"{sign} {check.what}: off by {check.off:.1e}, may be {check.limit:.0e}")
    passed = all(check.passed for check in done)
    if as_json:
        rows = [{**vars(check), "passed": check.passed} for check in done]
        summary = {"model": model, "dtype": str(loaded.dtype), "passed": passed, "checks": rows}
        if speeds:
            summary |= {"device": _device_name(loaded.device), "seconds": [vars(speed) for speed in speeds]}
        print_result(summary)
        sys.exit(0 if passed else 1)
    if speeds:
        print_result(_table(speeds, loaded))
    verdict = "is computed" if passed else "is NOT computed"
    advice = "" if passed else ": do not use its scores, and please report this"
    print_result(f"{model} {verdict} as it should be{advice}.")
    sys.exit(0 if passed else 1)


def _table(speeds: Sequence[Speed], model: Transformer) -> str:
    """How long everything takes on the CPU and on the device, to read or to send."""
    import torch

    name, dtype = _device_name(model.device), str(model.dtype).removeprefix("torch.")
    rows = [f"{x.what:<44} {x.cpu:>9.2f} s {x.device:>9.2f} s {x.cpu / x.device:>7.1f} x" for x in speeds]
    head = f"{'':<44} {'CPU':>11} {model.device!s:>11} {'faster':>9}"
    where = f"{name}, torch {torch.__version__}, {torch.get_num_threads()} CPU threads, {dtype}"
    return "\n".join(["", head, *rows, where, ""])


def _device_name(device: torch.device) -> str:
    """The name of a GPU where PyTorch knows it, else that of the device."""
    import torch

    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(device) if device.type == "cpu" or name is None else str(name(device))
