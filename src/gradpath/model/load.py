"""Loading a model from a name, a folder, a ``.gguf`` file, or a loaded model of ``transformers`` or another tool."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from gradpath.errors import GradpathError, InputError, did_you_mean, is_out_of_memory, reason
from gradpath.model.architecture import fields_of
from gradpath.model.cache import PACKAGED, Packaged, cached_model, packaged
from gradpath.model.families import FAMILIES, check_family, convert
from gradpath.model.file_checks import NO_CODE, GgufFile, auto_class, check_claims, empty_model
from gradpath.model.tokenizer import Tokenizer, panics_as_errors
from gradpath.model.transformer import Transformer
from gradpath.runtime import distributed
from gradpath.runtime.files import ELSEWHERE, recorded_path
from gradpath.runtime.progress import announce

_PATIENCE = 6.0  # seconds to wait for the hub
_UNPACKED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # types of weights that are not quantized
# The largest deviation from a model in memory that rounding explains, relative to the largest logit; else 1e-3.
_SAME_LOGITS = {torch.bfloat16: 0.3, torch.float16: 0.05}


class _Loaded(NamedTuple):
    """A model, the ``transformers`` tokenizer and the name that it gets, and whether its source asks for BOS."""

    model: Transformer
    hf_tokenizer: Any
    name: str
    bos: bool | None = None  # None: as its family or its tokenizer has it


def load_model(
    source: Any,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    bos: bool | None = None,
    tokenizer: Any = None,
) -> Transformer:
    """Load a model.

    Args:
        source: ``smollm2`` or ``gemma3-270m`` (installed as Python packages), a name on the Hugging Face hub, a local
            folder, a ``.gguf`` file, a loaded ``transformers`` model, or a ``TransformerBridge`` of TransformerLens.
        device: The device of the model. By default the CPU, or under torchrun the GPU of the process.
        dtype: The precision. By default float32; a loaded model keeps its own.
        bos: Whether prompts begin with the BOS token. By default they do for GPT-2 and Gemma, and other families
            follow their tokenizer.
        tokenizer: A ``transformers`` tokenizer, for a model without one.

    Returns:
        The model. Its ``name`` is the source. A path is shortened to ``./tiny`` in the working directory and to
        ``.../tiny`` elsewhere, so that files do not contain folder names of this machine.
    """
    precision, one_device = find_dtype(dtype), find_device(device)  # before anything is read
    # Weights are prepared in their own precision, and can be used with gradients, whatever the caller has switched on.
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False), _enough_memory(source):
        if not isinstance(source, (str, Path)):
            loaded = _from_object(source)
        elif known := _installed(str(source)):
            loaded = _from_package(known)
        else:
            loaded = _from_files(str(source), precision or torch.float32)
        model = loaded.model
        text = _tokenizer_of(tokenizer or loaded.hf_tokenizer, model, loaded.bos if bos is None else bos)
        placed = model.to(one_device, precision)
    placed = replace(placed, tokenizer=text, name=recorded_path(loaded.name))
    if "digest" in vars(model) and precision in (None, model.dtype):
        vars(placed)["digest"] = model.digest  # it was computed when the file was checked
    return placed


def load_shape(source: str, *, dtype: torch.dtype | str | None = None, bos: bool | None = None) -> Transformer:
    """A model without its weights (on the meta device), from its configuration, with its tokenizer if it has one.

    A packaged model and a ``.gguf`` file are loaded.
    """
    if _installed(source) or source.endswith(".gguf"):
        return load_model(source, dtype=dtype, bos=bos)
    from transformers import AutoConfig

    folder, _ = _locate(source)
    with _one_sentence(source, folder), _quiet():
        if not Path(folder).is_dir():
            _check_hub(folder)
        config = AutoConfig.from_pretrained(folder, **NO_CODE)
        check_family(config.model_type)
        hf_model = empty_model(config, dtype=find_dtype(dtype) or torch.float32)
    model, hf_tokenizer = convert(hf_model), _read_tokenizer(folder, NO_CODE)
    if hf_tokenizer is not None and not hf_tokenizer("the", add_special_tokens=False)["input_ids"]:  # it has no words
        hf_tokenizer = None
    return replace(model, tokenizer=_tokenizer_of(hf_tokenizer, model, bos), name=recorded_path(source))


def load_original(source: str, dtype: torch.dtype) -> Any:
    """The ``transformers`` model itself, for comparison."""
    with _enough_memory(source):
        if (known := _installed(source)) is None:
            return _read(source, dtype)[0].eval()
        with known.whole_file() as file:
            return _read(str(file), dtype)[0].eval()


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
    known = packaged(source)
    return known if known is not None and known.parts() else None


def _from_package(known: Packaged) -> _Loaded:
    """A packaged model from the cache, where it is stored after it was converted from its GGUF file."""

    def converted() -> tuple[Transformer, Any]:
        announce(f"converting {known.name} from its package: once, about a minute")
        with known.whole_file() as file:
            loaded = _from_files(str(file), torch.float32)
        return loaded.model, loaded.hf_tokenizer

    return _Loaded(*cached_model(known.cache(), converted), known.name)


def _from_files(source: str, dtype: torch.dtype) -> _Loaded:
    """A model from a folder, a ``.gguf`` file or the hub."""
    hf_model, hf_tokenizer, gguf = _read(source, dtype)
    model = convert(hf_model)
    if gguf is not None:
        model = gguf.complete(model, hf_model)
    _check_finite(model, source)
    return _Loaded(model, hf_tokenizer, source, True if gguf is not None and gguf.add_bos else None)


def _from_object(source: Any) -> _Loaded:
    """A model that is in memory already, and that computes what its weights say."""
    original, tokenizer = _unwrapped(source), getattr(source, "tokenizer", None)
    _check_weights_of(original)
    name = str(getattr(original.config, "_name_or_path", "") or "")
    if name and tokenizer is None:
        with _quiet():
            tokenizer = _read_tokenizer(name, {**NO_CODE, "local_files_only": True})
    model, name = convert(original), name or f"a {original.config.model_type} model"
    _check_finite(model, name)
    _check_same_logits(source, model)
    return _Loaded(model, tokenizer, name, bool(source.cfg.default_prepend_bos) if _is_bridge(source) else None)


def _is_bridge(source: Any) -> bool:
    """Whether an object is a ``TransformerBridge`` of TransformerLens, which is not imported."""
    return hasattr(source, "cfg") and hasattr(source, "original_model")


def _unwrapped(source: Any) -> Any:
    """The ``transformers`` model in a bridge, as far as adapters read it; other objects as they are.

    A bridge wraps the modules of the model, and gives some weights a second name.
    """
    if not _is_bridge(source):
        return source
    original = source.original_model
    with torch.device("meta"):
        names = type(original)(original.config).state_dict().keys()
    weights = {name.replace("._original_component", ""): weight for name, weight in original.state_dict().items()}
    weights = {name: weight for name, weight in weights.items() if name in names}
    parts = {name: getattr(original, name) for name in ("config", "base_model", "base_model_prefix")}
    return SimpleNamespace(state_dict=lambda: weights, **parts)


def _read(source: str, dtype: torch.dtype) -> tuple[Any, Any, GgufFile | None]:
    """The ``transformers`` model of a name, folder or file, its tokenizer, and the rest of a GGUF file."""
    folder, file = _locate(source)
    with _one_sentence(source, folder), _quiet(), panics_as_errors():
        if Path(folder).is_dir():
            return _read_files(source, folder, file, dtype, NO_CODE)
        try:  # a model that was downloaded before needs no network
            return _read_files(source, folder, None, dtype, {**NO_CODE, "local_files_only": True})
        except OSError as problem:
            if is_out_of_memory(problem):
                raise
            _check_hub(folder)
            return _read_files(source, folder, None, dtype, NO_CODE)


@contextmanager
def _one_sentence(source: str, folder: str) -> Iterator[None]:
    """Say in one sentence that a model could not be read: a damaged file can make the libraries raise anything."""
    try:
        yield
    except GradpathError:
        raise
    except Exception as problem:
        if is_out_of_memory(problem):
            raise
        if Path(folder).is_dir():
            message = f"no model could be loaded from {source}: {reason(problem)}. Check or download it again."
        elif known := PACKAGED.get(source):
            package = "the package" if len(known.packages) == 1 else "one of the packages"
            message = (
                f"{package} {', '.join(known.packages)} with the model {source!r} is not installed, and "
                f"{known.hub_name} could not be reached on the hub ({reason(problem)}). Install it: {known.install}"
            )
        else:
            message = (
                f"the model {source!r} could not be reached on the hub and is not on this machine ({reason(problem)})."
                f"{did_you_mean(source, list(PACKAGED))} "
                "Check the name and the network, or use smollm2, a local folder or a .gguf file."
            )
        raise InputError(message) from None


def _read_files(
    source: str, folder: str, file: str | None, dtype: torch.dtype, options: Mapping[str, Any]
) -> tuple[Any, Any, GgufFile | None]:
    """Read with ``transformers`` from a folder, the hub's cache or the hub."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.quantization_config import Mxfp4Config

    gguf, auto, unpack = None, AutoModelForCausalLM, dict[str, Any]()
    if file is not None:
        gguf, options = GgufFile.read(Path(folder, file)), {**options, "gguf_file": file}
    else:  # before any weight is read, or downloaded
        config = _checked_config(source, folder, options)
        auto = auto_class(config["model_type"])
        unpack = {"quantization_config": Mxfp4Config(dequantize=True)} if config.get("quantization_config") else {}
    if Path(folder).is_dir():
        check_claims(Path(folder), file)
    model, loaded = auto.from_pretrained(folder, dtype=dtype, output_loading_info=True, **options, **unpack)
    _check_all_loaded(source, loaded)
    model = model.to(dtype) if unpack else model  # unpacked weights are bfloat16, whatever the requested type
    return model, _read_tokenizer(folder, options), gguf


def _checked_config(source: str, folder: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of config.json, of a family that is read and without packed weights other than MXFP4."""
    from transformers import PretrainedConfig

    config: dict[str, Any] = PretrainedConfig.get_config_dict(folder, **options)[0]
    if config.get("model_type") is None:
        raise ValueError("its config.json cannot be read, or names no model_type")
    check_family(str(config["model_type"]))
    if packing := config.get("quantization_config"):
        method = packing.get("quant_method") if isinstance(packing, dict) else packing
        if method != "mxfp4":
            raise _packed(f"the checkpoint {source}", method)
    return config


def _packed(model: str, method: object) -> InputError:
    """The error for quantized weights, which are numbers only together with their scales."""
    return InputError(
        f"{model} has packed weights ({method}), and gradpath reads ordinary numbers: use a version in bfloat16, or "
        "convert the weights first."
    )


def _check_hub(name: str) -> None:
    """Raise an error if the hub does not answer soon: the libraries would retry for half a minute."""
    import huggingface_hub

    huggingface_hub.model_info(name, timeout=_PATIENCE)


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
    path = Path(source).expanduser()
    if (known := PACKAGED.get(source)) and not (path / "config.json").is_file():
        return known.hub_name, None
    if source.startswith(ELSEWHERE):
        raise InputError(
            f"the model {source} was outside of the working directory, so its path was not recorded. Give its folder "
            "or file with --model."
        )
    if path.suffix == ".gguf" and path.is_file():
        return str(path.parent), path.name
    if (path / "config.json").is_file():
        return str(path), None
    if path.is_dir():
        problem = f"the folder {source} holds no model: it has no config.json"
    elif path.is_file():
        problem = f"the file {source} is not a model"
    elif path.suffix == ".gguf" or path.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1:
        problem = f"there is no file or folder {source}"
    else:
        return source, None
    raise InputError(f"{problem}. Give a folder that save_pretrained wrote, a .gguf file, a hub name, or smollm2.")


def _check_weights_of(original: Any) -> None:
    """Refuse an object that is no model, or whose weights are not ordinary numbers."""
    if type(original).__name__ == "HookedTransformer":
        raise InputError(
            "a HookedTransformer has weights in a layout of its own, which gradpath does not read: load the same model "
            "as TransformerBridge.boot_transformers(name), or give gradpath its name."
        )
    if not hasattr(original, "config") or not hasattr(original, "state_dict"):
        raise InputError(
            "a model is a name, a folder, a .gguf file or a loaded model of transformers or TransformerLens: "
            f"got {type(original)}."
        )
    weights = original.state_dict()
    if any(weight.is_meta for weight in weights.values()):
        raise InputError("this model has no weights: they are on the meta device. Load it with its weights first.")
    types = {x.dtype for name, x in weights.items() if name.endswith("weight") and x.ndim > 1}
    if packed := [str(dtype).removeprefix("torch.") for dtype in types if dtype not in _UNPACKED]:
        raise _packed("this model", ", ".join(sorted(packed)))


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
        if _is_bridge(original) and original.compatibility_mode:
            raise InputError(
                "this bridge has changed the weights of its transformers model. Load it before "
                "enable_compatibility_mode is called, or call that with no_processing=True."
            )
        raise InputError(
            "this model does not compute what its weights and configuration say: its logits are "
            f"{off:.1%} off. Remove hooks and replaced modules, or put their effect into the weights."
        )


def _read_tokenizer(folder: str, options: Mapping[str, Any]) -> Any:
    """The tokenizer of a model, or None: a model can be used with token ids alone."""
    from transformers import AutoTokenizer

    try:
        with panics_as_errors():
            return AutoTokenizer.from_pretrained(folder, **options)
    except Exception:  # none, or one that cannot be read
        return None


def _tokenizer_of(hf_tokenizer: Any, model: Transformer, bos: bool | None) -> Tokenizer | None:
    """The tokenizer of a model, with the token to put in front of prompts, if any."""
    if hf_tokenizer is None:
        return None
    token: int | None = hf_tokenizer.bos_token_id
    if bos is None:
        with panics_as_errors():
            bos = FAMILIES[model.arch.family].bos or hf_tokenizer("the")["input_ids"][:1] == [token]
    if bos and token is None:
        raise InputError("prompts should begin with a BOS token, but this tokenizer has none. Use --no-bos.")
    return Tokenizer(hf_tokenizer, token if bos else None)


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

    disabled, bars = logging.root.manager.disable, hf_logging.is_progress_bar_enabled()
    logging.disable(logging.WARNING)
    hf_logging.disable_progress_bar()
    gguf_bar = vars(gguf_reading).get("tqdm")  # this bar cannot be switched off
    vars(gguf_reading)["tqdm"] = lambda items, **_: items
    try:
        yield
    finally:
        vars(gguf_reading)["tqdm"] = gguf_bar
        logging.disable(disabled)
        if bars:
            hf_logging.enable_progress_bar()
