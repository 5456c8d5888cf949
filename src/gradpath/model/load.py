"""Loading a model from a name, a folder, a ``.gguf`` file, or a loaded model of ``transformers`` or another tool."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gradpath.errors import GradpathError, InputError, UsageError, did_you_mean, is_out_of_memory, reason
from gradpath.graph import Graph
from gradpath.model.architecture import fields_of
from gradpath.model.cache import PACKAGED, Packaged, cached_model
from gradpath.model.families import FAMILIES, check_family, convert
from gradpath.model.file_checks import GgufFile, auto_class, check_claims
from gradpath.model.tokenizer import Tokenizer, panics_as_errors
from gradpath.model.transformer import Transformer
from gradpath.model.wrapped import is_bridge, unwrap, without_nnsight
from gradpath.runtime import distributed
from gradpath.runtime.files import ELSEWHERE, recorded_path
from gradpath.runtime.progress import announce

_PATIENCE = 6.0  # seconds to wait for the hub
_UNPACKED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # types of weights that are not quantized
# The largest deviation from a model in memory that rounding explains, relative to the largest logit; else 1e-3.
_SAME_LOGITS = {torch.bfloat16: 0.3, torch.float16: 0.05}


class _Source(NamedTuple):
    """A loaded ``transformers`` model, its tokenizer if it has one, its name, and the GGUF file it came from."""

    hf_model: Any
    hf_tokenizer: Any
    name: str
    gguf: GgufFile | None = None


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
    """Load a model.

    Args:
        source: ``smollm2`` or ``gemma3-270m`` (installed as Python packages), a name on the Hugging Face hub, a local
            folder, a ``.gguf`` file, a loaded ``transformers`` model, a ``TransformerBridge`` of
            TransformerLens, or a model of nnsight.
        device: The device of the model. By default the CPU, or under torchrun the GPU of the process.
        device_map: Several devices for a model that is too large for one: ``auto`` for all GPUs of the machine, or a
            list such as "0,1".
        dtype: The precision. By default float32; a loaded model keeps its own.
        bos: Whether prompts begin with the BOS token. By default they do for GPT-2 and Gemma, and other families
            follow their tokenizer.
        tokenizer: A ``transformers`` tokenizer, for a model without one.
        trust_remote_code: Whether to run the code of a hub repository.

    Returns:
        The model. Its ``name`` is the source. A path is shortened to ``./tiny`` in the working directory and to
        ``.../tiny`` elsewhere, so that files do not contain folder names of this machine.
    """
    if device is not None and device_map is not None:
        raise UsageError("device and device_map both say where the model goes: give one of them.")
    precision, one_device = find_dtype(dtype), find_device(device)  # before anything is read
    # Weights are prepared in their own precision, and can be used with gradients, whatever the caller has switched on.
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False), _enough_memory(source):
        digest, text = None, None
        if not isinstance(source, (str, Path)):
            loaded = _from_object(source)
            model, hf_tokenizer, name = _converted(loaded), loaded.hf_tokenizer, loaded.name
            _check_same_logits(without_nnsight(source), model)
            if bos is None and is_bridge(source):
                bos = bool(source.cfg.default_prepend_bos)
        elif packaged := _installed(str(source)):
            model, hf_tokenizer = cached_model(packaged.cache(), lambda: _from_package(packaged))
            name, digest = packaged.name, model.digest
        else:
            loaded = _from_name(str(source), precision or torch.float32, trust_remote_code)
            model, hf_tokenizer, name = _converted(loaded), loaded.hf_tokenizer, loaded.name
            bos = True if bos is None and loaded.gguf is not None and loaded.gguf.add_bos else bos
        if (hf_tokenizer := tokenizer or hf_tokenizer) is not None:
            text = Tokenizer(hf_tokenizer, _bos_token(hf_tokenizer, model.arch.family, bos))
        model = (
            model.to(one_device, precision) if device_map is None else _spread(model.to(dtype=precision), device_map)
        )
    model = replace(model, tokenizer=text, name=recorded_path(name))
    if digest is not None and precision in (None, torch.float32):
        vars(model)["digest"] = digest  # it was computed when the file was checked
    return model


def load_shape(
    source: str, *, dtype: torch.dtype | str | None = None, bos: bool | None = None, trust_remote_code: bool = False
) -> Transformer:
    """A model without its weights (on the meta device), from its configuration, with its tokenizer if it has one.

    A packaged model and a ``.gguf`` file are loaded.
    """
    if _installed(source) or source.endswith(".gguf"):
        return load_model(source, dtype=dtype, bos=bos)
    from transformers import AutoConfig

    folder, _ = _locate(source)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    precision, text = find_dtype(dtype) or torch.float32, None
    options["local_files_only"] = Path(folder).is_dir()
    try:
        with _quiet():
            if not options["local_files_only"]:
                _check_hub(folder)
            config = AutoConfig.from_pretrained(folder, **options)
            check_family(config.model_type)
            with torch.device("meta"):
                hf_model = auto_class(config.model_type).from_config(
                    config, dtype=precision, trust_remote_code=trust_remote_code
                )
    except GradpathError:
        raise
    except Exception as problem:
        raise InputError(
            f"the configuration of {source} could not be read ({reason(problem)}). Check config.json, or the name."
        ) from None
    model = convert(hf_model)
    hf_tokenizer = _read_tokenizer(folder, options)
    if hf_tokenizer is not None and hf_tokenizer("the", add_special_tokens=False)["input_ids"]:  # else it has no words
        text = Tokenizer(hf_tokenizer, _bos_token(hf_tokenizer, model.arch.family, bos))
    return replace(model, tokenizer=text, name=recorded_path(source))


def graph_before_loading(source: str) -> Graph | None:
    """The graph of a packaged model or of one in a folder, before its weights are read; None of any other."""
    if packaged := _installed(source):
        return Graph(*packaged.shape)
    if not Path(source).expanduser().is_dir():
        return None
    return load_shape(source).graph


def load_original(source: str, dtype: torch.dtype, *, trust_remote_code: bool = False) -> Any:
    """The ``transformers`` model itself, for comparison."""
    with _enough_memory(source):
        if (packaged := _installed(source)) is None:
            return _from_name(source, dtype, trust_remote_code).hf_model.eval()
        with packaged.whole_file() as file:
            return _from_name(str(file), dtype, trust_remote_code).hf_model.eval()


@contextmanager
def _enough_memory(source: Any) -> Iterator[None]:
    """Say it in one sentence if the model does not fit into memory."""
    try:
        yield
    except Exception as problem:
        if not is_out_of_memory(problem):
            raise
        name = source if isinstance(source, (str, Path)) else "this model"
        raise GradpathError(
            f"{name} could not be loaded because memory was too small ({reason(problem)}). Free some, raise the limit "
            "of the process (ulimit -v), or use a smaller model or --dtype bfloat16."
        ) from None


def _installed(source: str) -> Packaged | None:
    """The packaged model of that name, if its packages are installed; otherwise it is loaded from the hub."""
    packaged = PACKAGED.get(source)
    return packaged if packaged is not None and packaged.parts() else None


def _from_package(packaged: Packaged) -> tuple[Transformer, Any]:
    """A packaged model, converted from its GGUF file, and its tokenizer."""
    announce(f"converting {packaged.name} from its package: once, about a minute")
    with packaged.whole_file() as file:
        loaded = _from_name(str(file), torch.float32, False)
    return _converted(loaded), loaded.hf_tokenizer


def _converted(loaded: _Source) -> Transformer:
    """Our model of a loaded ``transformers`` model, with finite weights."""
    model = convert(loaded.hf_model)
    if loaded.gguf is not None:
        model = loaded.gguf.complete(model, loaded.hf_model)
    _check_finite(model, loaded.name)
    return model


def _from_name(source: str, dtype: torch.dtype, trust_remote_code: bool) -> _Source:
    folder, file = _locate(source)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if file is not None:
        options["gguf_file"] = file
    try:
        with _quiet(), panics_as_errors():
            if Path(folder).is_dir():
                return _read(source, folder, file, dtype, options)
            try:  # a model that was downloaded before needs no network
                return _read(source, folder, file, dtype, {**options, "local_files_only": True})
            except OSError as problem:
                if is_out_of_memory(problem):
                    raise
                _check_hub(folder)
                return _read(source, folder, file, dtype, options)
    except GradpathError:
        raise
    except Exception as problem:  # a damaged file can make the libraries raise anything
        if is_out_of_memory(problem):
            raise
        if Path(folder).is_dir():
            message = f"no model could be loaded from {source}: {reason(problem)}. Check or download it again."
        else:
            message = (
                f"the model {source!r} could not be reached on the hub and is not on this machine ({reason(problem)})."
                f"{did_you_mean(source, list(PACKAGED))} "
                "Check the name and the network, or use smollm2, a local folder or a .gguf file."
            )
        raise InputError(message) from None


def _read(source: str, folder: str, file: str | None, dtype: torch.dtype, options: dict[str, Any]) -> _Source:
    """Read a model with ``transformers`` from a folder, the hub's cache or the hub."""
    from transformers import PretrainedConfig
    from transformers.utils.quantization_config import Mxfp4Config

    gguf, family = None if file is None else GgufFile.read(Path(folder, file)), None
    unpack: dict[str, Any] = {}
    if file is None:  # before any weight is read, or downloaded
        local = {"local_files_only": True} if "local_files_only" in options else {}
        config = PretrainedConfig.get_config_dict(folder, **local)[0]
        family = config.get("model_type")
        if family is None:
            raise ValueError("its config.json cannot be read, or names no model_type")
        check_family(str(family))
        if packing := config.get("quantization_config"):
            method = packing.get("quant_method") if isinstance(packing, dict) else packing
            if method != "mxfp4":
                raise _packed(f"the checkpoint {source}", method)
            unpack = {"quantization_config": Mxfp4Config(dequantize=True)}
    if Path(folder).is_dir():
        check_claims(Path(folder), file, bool(options["trust_remote_code"]))
    auto = auto_class(str(family))
    model, loaded = auto.from_pretrained(folder, dtype=dtype, output_loading_info=True, **options, **unpack)
    _check_all_loaded(source, loaded)
    model = model.to(dtype) if unpack else model  # unpacked weights are bfloat16, whatever the requested type
    return _Source(model, _read_tokenizer(folder, options), source, gguf)


def _packed(model: str, method: object) -> InputError:
    """The error for quantized weights, which are numbers only together with their scales."""
    return InputError(
        f"{model} has packed weights ({method}), and gradpath reads ordinary numbers: use a version in bfloat16, or "
        "convert the weights first."
    )


def _check_hub(name: str) -> None:
    """Request a small file from the hub, and raise an ``OSError`` if there is no answer soon.

    The library itself would retry for half a minute. The request is made in a thread, because a name lookup has no time
    limit when the network is down.
    """
    import huggingface_hub

    problems: list[str] = []

    def request() -> None:
        try:
            huggingface_hub.hf_hub_download(name, "config.json", etag_timeout=_PATIENCE)
            problems.append("")
        except Exception as problem:
            problems.append(reason(problem))

    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    problem = problems[0] if problems else f"no answer within {_PATIENCE:g} seconds"
    if problem:
        raise OSError(problem)


def _check_all_loaded(source: str, loaded: Mapping[str, Any]) -> None:
    """Refuse weights that do not fit the configuration: transformers would fill in random ones, or drop some."""
    for kind, problem in (("missing_keys", "has no weight"), ("unexpected_keys", "has a weight that its model lacks:")):
        if names := sorted(map(str, loaded.get(kind) or ())):
            more = f" and {len(names) - 3} others" if len(names) > 3 else ""
            raise InputError(
                f"the checkpoint {source} {problem} {', '.join(names[:3])}{more}. Its configuration and its weights do "
                "not fit, so it is not loaded: check config.json, or download it again."
            )


def _locate(source: str) -> tuple[str, str | None]:
    """A folder or hub name for transformers, and the file in the folder if it is a .gguf."""
    if packaged := PACKAGED.get(source):
        return packaged.hub_name, None
    if source.startswith(ELSEWHERE):
        raise InputError(
            f"the model {source} was outside of the working directory, so its path was not recorded. Give its folder "
            "or file with --model."
        )
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
    if path.is_file():
        raise InputError(
            f"the file {source} is not a model. Give a .gguf file, a folder that holds a model, or a hub name."
        )
    if path.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1:
        raise InputError(f"there is no folder {source}. Give a folder that holds a model, or a hub name.")
    return source, None


def _from_object(source: Any) -> _Source:
    tokenizer, source = getattr(source, "tokenizer", None), unwrap(source)
    if not hasattr(source, "config") or not hasattr(source, "state_dict"):
        raise InputError(
            f"a model is a name, a folder, a .gguf file or a loaded model of transformers, TransformerLens or nnsight: "
            f"got {type(source)}."
        )
    weights = source.state_dict()
    if any(weight.is_meta for weight in weights.values()):
        raise InputError("this model has no weights: they are on the meta device. Load it with its weights first.")
    types = {x.dtype for name, x in weights.items() if name.endswith("weight") and x.ndim > 1}
    if packed := [str(dtype).removeprefix("torch.") for dtype in types if dtype not in _UNPACKED]:
        raise _packed("this model", ", ".join(sorted(packed)))
    name = str(getattr(source.config, "_name_or_path", "") or "")
    if name and tokenizer is None:
        with _quiet():
            tokenizer = _read_tokenizer(name, {"local_files_only": True})
    return _Source(source, tokenizer, name or f"a {source.config.model_type} model")


@torch.no_grad()
def _check_same_logits(original: Any, model: Transformer) -> None:
    """Refuse a model in memory that does not compute what its weights say, such as one with a hook.

    Both are run on eight tokens, or as many as the model reads. A hook that only records is called once.
    """
    size = len(model.embedding)
    ids = torch.arange(1, 9, device=model.device)[None, : model.max_positions] * (size - 1) // 9
    training = [module for module in original.modules() if module.training]
    original.eval()
    try:
        output = original(ids.to(next(original.parameters()).device))
        theirs = getattr(output, "logits", output).float().cpu()
    finally:
        for module in training:
            module.training = True
    ours = model.logits(ids).float().cpu()
    off = float((ours - theirs).abs().max() / theirs.abs().max())
    if not off <= _SAME_LOGITS.get(model.dtype, 1e-3):  # NaN is not the same either
        if is_bridge(original) and original.compatibility_mode:
            raise InputError(
                "this bridge has changed the weights of its transformers model. Load it before "
                "enable_compatibility_mode is called, or call that with no_processing=True."
            )
        raise InputError(
            "this model does not compute what its weights and configuration say: its logits are "
            f"{off:.1%} off. Remove hooks and replaced modules, or put their effect into the weights."
        )


def _read_tokenizer(folder: str, options: dict[str, Any]) -> Any:
    """The tokenizer of a model, or None: a model can be used with token ids alone."""
    from transformers import AutoTokenizer

    try:
        with panics_as_errors():
            return AutoTokenizer.from_pretrained(folder, **options)
    except Exception:  # none, or one that cannot be read
        return None


def _bos_token(tokenizer: Any, family: str, bos: bool | None) -> int | None:
    """The token to put in front of prompts, if any."""
    token: int | None = tokenizer.bos_token_id
    if bos is None:
        with panics_as_errors():
            bos = FAMILIES[family].bos or tokenizer("the")["input_ids"][:1] == [token]
    if bos and token is None:
        raise InputError("prompts should begin with a BOS token, but this tokenizer has none. Use --no-bos.")
    return token if bos else None


def find_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The requested precision."""
    requested = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and not (isinstance(requested, torch.dtype) and requested.is_floating_point):
        raise InputError(f"there is no floating-point type {dtype!r}. Use float32, bfloat16 or float16.")
    return requested


def find_device(device: torch.device | str | None) -> torch.device | None:
    """The requested device. Each of several processes gets its own GPU, unless the request names one."""
    local = distributed.local_device()
    if device is None or isinstance(device, torch.device):
        return device or local
    try:
        if device.strip() == "meta":
            raise RuntimeError("it holds no numbers")
        requested = torch.device(int(device)) if device.strip().isdigit() else torch.device(device.strip())
        if local is not None and requested.type == local.type and requested.index is None:
            requested = local
        torch.empty(0, device=requested)
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        raise InputError(f"the device {device!r} cannot be used ({reason(problem)}). Choose another one.") from None
    return requested


def _spread(model: Transformer, device_map: str | Sequence[torch.device | str]) -> Transformer:
    """The model on the devices of a device map."""
    if device_map == "auto":
        devices, room = gpus(model)
        return spread_over(model, devices, room) if devices else model
    names = device_map.split(",") if isinstance(device_map, str) else device_map
    devices = [device for name in names if (device := find_device(name)) is not None]
    return spread_over(model, devices, [1.0] * len(devices))


def spread_over(model: Transformer, devices: Sequence[torch.device], room: Sequence[float]) -> Transformer:
    """The model with its layers on the devices, in proportion to the room on each."""
    return model.spread([devices[i] for i in shares(_layer_sizes(model), room)])


def shares(sizes: Sequence[int], room: Sequence[float]) -> list[int]:
    """The index of the device for each of a sequence of sizes; devices are filled one after the other.

    >>> shares([1, 1, 1, 1], [1, 1])
    [0, 0, 1, 1]
    >>> shares([1, 1, 1, 1], [3, 1])
    [0, 0, 0, 1]
    """
    ends = list(accumulate(share / sum(room) for share in room))
    middles = [(end - size / 2) / sum(sizes) for size, end in zip(sizes, accumulate(sizes), strict=True)]
    return [next((i for i, end in enumerate(ends) if middle < end), len(ends) - 1) for middle in middles]


def gpus(model: Transformer) -> tuple[list[torch.device], list[float]]:
    """The GPUs of this machine and the free bytes of each; refuses a model that does not fit."""
    from accelerate.utils import get_max_memory

    room = {device: free for device, free in get_max_memory().items() if isinstance(device, int)}
    needed = sum(_layer_sizes(model))
    if room and needed > sum(room.values()):
        raise InputError(
            f"{model.name or 'the model'} takes {needed / 1e9:.1f} GB and the GPUs here have "
            f"{sum(room.values()) / 1e9:.1f} GB free. Use --dtype bfloat16, or a machine with more."
        )
    return [torch.device(device) for device in room], [float(free) for free in room.values()]


def _layer_sizes(model: Transformer) -> list[int]:
    """The bytes of each layer; the embedding counts with the first one, the unembedding with the last."""
    sizes = [sum(x.nbytes for x in fields_of(y).values() if isinstance(x, torch.Tensor)) for y in model.layers]
    sizes[0] += model.embedding.nbytes
    sizes[-1] += model.unembedding.nbytes
    return sizes


def _check_finite(model: Transformer, name: str) -> None:
    """Refuse weights that are not finite, which would make every score NaN."""
    tensors = {f"layer {i}, {key}": value for i, x in enumerate(model.layers) for key, value in fields_of(x).items()}
    for where, value in (tensors | vars(model)).items():
        if isinstance(value, torch.Tensor) and not value.isfinite().all():
            raise InputError(
                f"the weights of {name} are damaged: {where} holds values that are not finite numbers. "
                "Download or convert the model again."
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the progress bars and messages of transformers, and restore them afterwards."""
    from transformers import modeling_gguf_pytorch_utils as gguf_reading
    from transformers.utils import logging as hf_logging

    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hub = logging.getLogger("huggingface_hub")
    hub_level = hub.level
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    hub.setLevel(logging.ERROR)
    gguf_bar = vars(gguf_reading).get("tqdm")  # this bar cannot be switched off
    vars(gguf_reading)["tqdm"] = lambda items, **_: items
    try:
        yield
    finally:
        vars(gguf_reading)["tqdm"] = gguf_bar
        hf_logging.set_verbosity(level)
        hub.setLevel(hub_level)
        if bars:
            hf_logging.enable_progress_bar()
