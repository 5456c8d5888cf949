"""Loading a model by whatever the user has: a name, a folder, a .gguf file, a ``transformers`` model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gradpath.errors import GradpathError, InputError, UsageError
from gradpath.model.families import FAMILIES, check_family, convert
from gradpath.model.gguf import GgufFile
from gradpath.model.packaged import PACKAGED
from gradpath.model.placement import AUTO, gpus, spread_over
from gradpath.model.tokenizer import Tokenizer
from gradpath.model.transformer import Transformer
from gradpath.model.untrusted import check_claims
from gradpath.runtime import distributed


def load_model(
    source: Any,
    *,
    device: torch.device | str | None = None,
    device_map: str | Sequence[torch.device | str] | None = None,
    dtype: torch.dtype | str | None = None,
    bos: bool | None = None,
    tokenizer: Any = None,
    trust_remote_code: bool = False,
) -> Transformer:
    """The model of a hub name, a local folder, a ``.gguf`` file, a name of ours or a ``transformers`` model.

    Names of ours are ``smollm2`` and ``gemma3-270m``, which packages carry.

    ``device_map`` puts the layers on several devices, for a model that is too large for one: ``auto`` takes
    the GPUs of this machine, a list (or "0,1") those that it names.

    ``dtype`` is float32 unless said otherwise (a loaded model keeps its own). ``bos`` puts the
    beginning-of-sequence token in front of every prompt, or not; by default GPT-2 and Gemma get it and other
    families follow their tokenizer. ``tokenizer`` is a ``transformers`` tokenizer, for a model without one.
    """
    precision, gguf = _dtype(dtype), None
    if isinstance(source, (str, Path)):
        loaded, found, gguf, name = _from_name(str(source), precision or torch.float32, trust_remote_code)
    else:
        loaded, found, name = _from_object(source)
    model = convert(loaded) if gguf is None else gguf.complete(convert(loaded), loaded)
    _check_finite(model, name)
    chosen = tokenizer or found
    if bos is None and gguf is not None and gguf.add_bos:
        bos = True
    text = None if chosen is None else Tokenizer(chosen, _bos_token(chosen, model.arch.family, bos))
    if device_map is not None:
        if device is not None:
            raise UsageError("device and device_map both say where the model goes: give one of them.")
        return replace(_placed(model.to(dtype=precision), device_map), tokenizer=text, name=name)
    return replace(model.to(_device(device), precision), tokenizer=text, name=name)


def load_original(source: str, dtype: torch.dtype, *, trust_remote_code: bool = False) -> Any:
    """The ``transformers`` model itself, to hold ours against."""
    return _from_name(source, dtype, trust_remote_code)[0].eval()


def _placed(model: Transformer, asked: str | Sequence[torch.device | str]) -> Transformer:
    """The model on the devices of a device map."""
    if asked == AUTO:
        devices, room = gpus(model)
        return spread_over(model, devices, room) if devices else model
    names = asked.split(",") if isinstance(asked, str) else asked
    found = [_device(name) for name in names]
    devices = [device for device in found if device is not None]
    return spread_over(model, devices, [1.0] * len(devices))


def _from_name(source: str, dtype: torch.dtype, trust_remote_code: bool) -> tuple[Any, Any, GgufFile | None, str]:
    """The transformers model and tokenizer of a name, a folder or a file, that file, and what to call it."""
    folder, file = _located(source)
    from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

    common: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if file is not None:
        common["gguf_file"] = file
    try:
        with _quiet():
            gguf = None if file is None else GgufFile.read(Path(folder, file))
            if file is None:  # before any weight is read, or fetched
                check_family(str(PretrainedConfig.get_config_dict(folder)[0].get("model_type")))
            if Path(folder).is_dir():
                check_claims(Path(folder), file, common)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **common)
            tokenizer = _tokenizer_of(AutoTokenizer, folder, common)
    except GradpathError:
        raise
    except Exception as problem:  # a damaged file can make the libraries below raise anything
        raise _explained(source, folder, problem) from None
    return model, tokenizer, gguf, source


def _located(source: str) -> tuple[str, str | None]:
    """Where transformers should look: a folder or hub name, and a file in it if it is a .gguf."""
    if packaged := PACKAGED.get(source):
        folder = packaged.local_folder(_quiet)
        return (str(folder) if folder else packaged.hub_name), None
    path = Path(source).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise InputError(f"there is no file {source}. Give the path of a .gguf file.")
        return str(path.parent), path.name
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(
                f"the folder {source} holds no model: it has no config.json. Give a folder that "
                "save_pretrained wrote, a .gguf file, a hub name, or smollm2."
            )
        return str(path), None
    if path.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1:
        raise InputError(f"there is no folder {source}. Give a folder that holds a model, or a hub name.")
    return source, None


def _tokenizer_of(auto: Any, folder: str, common: dict[str, Any]) -> Any:
    """The tokenizer beside the weights, or None: a model can be used with token ids alone."""
    try:
        return auto.from_pretrained(folder, **common)
    except Exception:  # whatever is wrong with it, there is none to use
        return None


def _explained(source: str, folder: str, problem: Exception) -> InputError:
    reason = str(problem).strip().partition("\n")[0].rstrip(".")
    if Path(folder).is_dir():
        return InputError(f"no model could be loaded from {source}: {reason}. Check or download it again.")
    return InputError(
        f"the model {source!r} could not be reached on the hub and is not on this machine ({reason}). "
        "Check the name and the network, or use smollm2, a local folder or a .gguf file."
    )


def _from_object(source: Any) -> tuple[Any, Any, str]:
    if not hasattr(source, "config") or not hasattr(source, "state_dict"):
        raise InputError(
            f"a model is a name, a folder, a .gguf file or a loaded transformers model: got {type(source)}."
        )
    name = str(getattr(source.config, "_name_or_path", "") or "")
    found = None
    if name:
        from transformers import AutoTokenizer

        with _quiet():
            found = _tokenizer_of(AutoTokenizer, name, {"local_files_only": True})
    return source, found, name or f"a {source.config.model_type} model"


def _bos_token(tokenizer: Any, family: str, bos: bool | None) -> int | None:
    """The token to put in front of prompts, if any."""
    token: int | None = tokenizer.bos_token_id
    if bos is None:
        bos = FAMILIES[family].bos or tokenizer("the")["input_ids"][:1] == [token]
    if bos and token is None:
        raise InputError("a BOS token was asked for, but this tokenizer has none. Leave it out with --no-bos.")
    return token if bos else None


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise InputError(f"there is no floating-point type {dtype!r}. Use float32, bfloat16 or float16.")
    return found


def _device(device: torch.device | str | None) -> torch.device | None:
    """The device asked for; of several processes each gets a GPU of its own, unless one was named."""
    own = distributed.local_device()
    if device is None or isinstance(device, torch.device):
        return device or own
    try:
        found = torch.device(int(device)) if device.strip().isdigit() else torch.device(device.strip())
        if own is not None and found.type == own.type and found.index is None:
            found = own
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        reason = str(problem).partition("\n")[0].rstrip(".")
        raise InputError(f"the device {device!r} cannot be used: {reason}. Choose another one.") from None
    return found


def _check_finite(model: Transformer, name: str) -> None:
    """A weight that is not a number would turn every score into one that is none."""
    tensors = {f"layer {i}, {key}": value for i, x in enumerate(model.layers) for key, value in vars(x).items()}
    tensors |= vars(model)
    for where, value in tensors.items():
        if isinstance(value, torch.Tensor) and not value.isfinite().all():
            raise InputError(
                f"the weights of {name} are damaged: {where} holds values that are not finite numbers. "
                "Download or convert the model again."
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the progress bars and notices of transformers out of the user's way, and put them back."""
    from transformers.utils import logging as hf_logging

    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hub = logging.getLogger("huggingface_hub")
    hub_level = hub.level
    hf_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    hf_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    hub.setLevel(logging.ERROR)
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        hub.setLevel(hub_level)
        if bars:
            hf_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
