"""Loading from every kind of source, and words for what cannot be loaded."""

from __future__ import annotations

import copy
import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from covering import FAMILIES, some
from safetensors.torch import load_file, save_file
from small_models import VOCAB, Numbers, tiny_hf
from transformers.utils import logging as transformers_logging

from gradpath.errors import GradpathError, InputError
from gradpath.model.load import load_model
from gradpath.model.tokenizer import Tokenizer

CONFORMANCE = Path(__file__).parent.parent / "data" / "conformance"
IDS = torch.randint(3, VOCAB, (2, 9), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", some(FAMILIES, ["gpt2", "neox", "qwen2-moe"]))
def test_a_folder_and_the_loaded_model_give_the_same_logits(kind, tmp_path):
    tiny_hf(kind).save_pretrained(tmp_path)
    expected = load_model(tiny_hf(kind)).logits(IDS)
    assert torch.equal(load_model(tmp_path).logits(IDS), expected)
    assert torch.equal(load_model(str(tmp_path)).logits(IDS), expected)


def packed_folder(folder: Path, packing: dict[str, object] | None) -> Path:
    """A small Llama whose projections are 8-bit numbers with a scale each, as FP8 and GPTQ checkpoints have them."""
    tiny_hf("llama-grouped").save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.endswith("proj.weight")]:
        stem, weight = name.removesuffix(".weight"), weights.pop(name)
        scale = weight.abs().max() / 100
        if packing and packing["quant_method"] == "gptq":
            weights |= {f"{stem}.qweight": (weight / scale).int(), f"{stem}.scales": scale[None, None].half()}
        else:
            weights |= {name: (weight / scale).to(torch.float8_e4m3fn), f"{stem}.weight_scale_inv": scale[None, None]}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if packing is not None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "quantization_config": packing}))
    return folder


@pytest.mark.parametrize(
    "packing",
    [
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
    ],
    ids=["fp8", "gptq"],
)
def test_packed_weights_are_refused_in_a_sentence(packing, tmp_path):
    with pytest.raises(InputError) as raised:
        load_model(packed_folder(tmp_path, packing))
    assert str(raised.value) == (
        f"the checkpoint {tmp_path} has packed weights ({packing['quant_method']}), and gradpath reads ordinary "
        "numbers: use a version in bfloat16, or convert the weights first."
    )


def test_packed_weights_that_the_configuration_conceals_are_refused_by_their_scales(tmp_path):
    with pytest.raises(InputError, match=r"has a weight that its model lacks: .*weight_scale_inv"):
        load_model(packed_folder(tmp_path, None))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_packed_weights_in_memory_are_refused(dtype):
    model = copy.deepcopy(tiny_hf("llama-grouped"))
    weight = model.model.layers[0].mlp.up_proj.weight
    model.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(weight.detach().to(dtype), requires_grad=False)
    with pytest.raises(InputError, match=rf"this model has packed weights \({str(dtype).partition('.')[2]}\)"):
        load_model(model)


def test_dtype_and_name_are_the_users(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    model = load_model(CONFORMANCE, dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    assert model.name == "./tests/data/conformance"
    assert load_model(tiny_hf("gpt2")).name == "a gpt2 model"


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "gemma3", "gemma3-with-images"])
def test_bos_goes_in_front_of_gpt2_and_gemma_prompts_unless_told_otherwise(kind):
    loads = {bos: load_model(tiny_hf(kind), tokenizer=Numbers(), bos=bos) for bos in (None, True, False)}
    fronts = {bos: model.tokenizer.encode(["5 6"])[0] for bos, model in loads.items()}
    assert fronts == {None: [1, 5, 6], True: [1, 5, 6], False: [5, 6]}


def test_bos_follows_the_tokenizer_in_other_families():
    assert load_model(tiny_hf("llama-grouped"), tokenizer=Numbers()).tokenizer.encode(["5"])[0] == [5]

    class WithBos(Numbers):
        def __call__(self, texts, add_special_tokens=True):
            ids = super().__call__(texts)
            return {"input_ids": [1, *ids["input_ids"]]} if add_special_tokens else ids

    assert load_model(tiny_hf("llama-grouped"), tokenizer=WithBos()).tokenizer.encode(["5"])[0] == [1, 5]


def test_bos_that_the_tokenizer_lacks_is_refused():
    class WithoutBos(Numbers):
        bos_token_id = None

    with pytest.raises(InputError, match="this tokenizer has none"):
        load_model(tiny_hf("gpt2"), tokenizer=WithoutBos())


def test_weights_that_are_not_finite_are_named(tmp_path):
    model = copy.deepcopy(tiny_hf("gpt2"))
    model.transformer.h[1].mlp.c_fc.weight.data[0, 0] = torch.nan
    with pytest.raises(InputError, match="damaged: layer 1, w_in"):
        load_model(model)


def no_weights(folder: Path) -> Path:
    shutil.copy(CONFORMANCE / "config.json", folder)
    return folder


def cut_weights(folder: Path) -> Path:
    shutil.copy(CONFORMANCE / "config.json", folder)
    (folder / "model.safetensors").write_bytes((CONFORMANCE / "model.safetensors").read_bytes()[:9000])
    return folder


def no_gguf(folder: Path) -> Path:
    (folder / "model.gguf").write_bytes(b"GGUF and then nonsense")
    return folder / "model.gguf"


def other_family(folder: Path) -> Path:
    (folder / "config.json").write_text('{"model_type": "no-such-family", "architectures": ["X"]}')
    return folder


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder, "holds no model: it has no config.json"),
        (no_weights, "no model could be loaded from"),
        (cut_weights, "no model could be loaded from"),
        (no_gguf, "no model could be loaded from"),
        (other_family, "gradpath reads .*gpt2, .*llama, .*mistral"),
    ],
)
def test_a_folder_or_file_that_is_no_model_is_refused(make, words, tmp_path):
    with pytest.raises(InputError, match=words):
        load_model(make(tmp_path))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("./no-such-folder", "there is no file or folder"),
        ("/no/such/folder", "there is no file or folder"),
        ("model.gguf", "there is no file or folder"),
        (__file__, r"test_load\.py is not a model\. Give a folder"),
        (17, "a model is a name, a folder"),
    ],
)
def test_a_source_that_is_not_there_is_refused(source, words):
    with pytest.raises(InputError, match=words):
        load_model(source)


# What RLIMIT_AS leads to: safetensors, PyTorch's mapping of a file, and its allocator.
@pytest.mark.parametrize(
    "problem",
    [
        MemoryError("Cannot allocate memory (os error 12)"),
        RuntimeError("unable to mmap 130249432 bytes from file <model.safetensors>: Cannot allocate memory (12)"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 102926336 bytes."),
    ],
)
@pytest.mark.parametrize("place", ["_read_files", "convert"])
def test_too_little_memory_is_not_called_a_bad_download(problem, place, tmp_path, monkeypatch):
    def fail(*_):
        raise problem

    tiny_hf("gpt2").save_pretrained(tmp_path)
    monkeypatch.setattr(f"gradpath.model.load.{place}", fail)
    with pytest.raises(GradpathError, match=r"because memory was too small .* raise the limit") as caught:
        load_model(str(tmp_path))
    assert "download" not in str(caught.value)


def test_a_hub_name_that_cannot_be_reached_offers_what_can(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"Did you mean 'smollm2'\? Check the name .* or use smollm2, a local folder"):
        load_model("smolm2")


@pytest.mark.parametrize(("option", "words"), [({"dtype": "float7"}, "float7"), ({"device": "abacus"}, "abacus")])
def test_a_dtype_or_device_that_is_none_is_refused(option, words):
    with pytest.raises(InputError, match=words):
        load_model(CONFORMANCE, **option)


def test_transformers_gets_its_own_messages_back():
    load_model(CONFORMANCE)
    assert logging.root.manager.disable == logging.NOTSET
    assert transformers_logging.is_progress_bar_enabled()


def edited(folder: Path, change) -> Path:
    """A saved checkpoint with other weights in its file."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file({name: x.clone() for name, x in weights.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


LAYER = "model.layers.1.self_attn"
DO_NOT_FIT = {
    "a weight is missing": (lambda w: w.pop(f"{LAYER}.q_proj.weight"), rf"has no weight {LAYER}\.q_proj\.weight"),
    "an untied model has no unembedding": (lambda w: w.pop("lm_head.weight"), r"has no weight lm_head\.weight"),
    "a bias that the configuration denies": (
        lambda w: w.update({f"{LAYER}.q_proj.bias": torch.ones(32)}),
        rf"lacks: {LAYER}\.q_proj\.bias",
    ),
    "a norm of queries": (lambda w: w.update({f"{LAYER}.q_norm.weight": torch.ones(8)}), r"lacks: .*q_norm"),
    "an adapter": (lambda w: w.update({f"{LAYER}.q_proj.lora_A.weight": torch.ones(4, 24)}), r"lacks: .*lora_A"),
    "more layers than configured": (
        lambda w: w.update({n.replace("layers.1.", "layers.3."): x for n, x in w.items() if "layers.1." in n}),
        r"lacks: model\.layers\.3\..* and \d others",
    ),
}


@pytest.mark.parametrize("kind", DO_NOT_FIT)
def test_a_checkpoint_whose_weights_do_not_fit_its_configuration_is_refused(kind, tmp_path):
    change, words = DO_NOT_FIT[kind]
    tiny_hf("llama-grouped").save_pretrained(tmp_path)
    with pytest.raises(InputError, match=words):
        load_model(edited(tmp_path, change))


def test_a_tokenizer_whose_regular_expression_never_ends_is_an_error_and_not_a_panic():
    from tokenizers import Regex, models, pre_tokenizers
    from tokenizers import Tokenizer as Rust
    from transformers import PreTrainedTokenizerFast

    rust = Rust(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    rust.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=rust))
    for use in (lambda text: tokenizer.encode([text]), tokenizer.pieces):
        with pytest.raises(InputError, match="the model's tokenizer failed"):
            use("a" * 40 + "b")


def test_a_hub_model_that_was_downloaded_before_is_loaded_without_the_network(tmp_path, monkeypatch):
    snapshot = tmp_path / "models--someone--tiny" / "snapshots" / ("0" * 40)
    tiny_hf("gpt2").save_pretrained(snapshot)
    (tmp_path / "models--someone--tiny" / "refs").mkdir()
    (tmp_path / "models--someone--tiny" / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.model_info", lambda *_, **__: pytest.fail("the network was tried"))
    assert load_model("someone/tiny").arch.n_layers == tiny_hf("gpt2").config.n_layer


def test_the_hub_is_asked_once_and_for_a_short_time(monkeypatch):
    def too_late(name, timeout):
        assert timeout < 10
        raise TimeoutError("no answer")

    monkeypatch.setattr("huggingface_hub.model_info", too_late)
    with pytest.raises(InputError, match=r"'someone/nothing' could not be reached.*no answer"):
        load_model("someone/nothing")


def test_a_model_in_memory_that_computes_something_else_is_refused():
    def without_the_first_layer(module, inputs, output):
        return inputs[0]

    hooked = copy.deepcopy(tiny_hf("gpt2"))
    hooked.transformer.h[0].mlp.register_forward_hook(without_the_first_layer)
    with pytest.raises(InputError, match=r"its logits are .*% off. Remove hooks and replaced modules"):
        load_model(hooked)
    replaced = copy.deepcopy(tiny_hf("llama-grouped"))
    replaced.model.layers[1].mlp.act_fn = torch.nn.Tanh()
    with pytest.raises(InputError, match="does not compute what its weights"):
        load_model(replaced)


def test_a_hook_that_only_records_and_the_training_mode_do_no_harm():
    recorded = []
    watched = copy.deepcopy(tiny_hf("gpt2"))
    watched.config.resid_pdrop = watched.transformer.h[0].mlp.dropout.p = 0.5
    watched.transformer.h[0].register_forward_hook(lambda *_: recorded.append(1))
    watched.train()
    watched.transformer.h[1].eval()
    load_model(watched)
    assert recorded == [1]
    assert watched.training
    assert watched.transformer.h[0].mlp.dropout.training
    assert not watched.transformer.h[1].mlp.dropout.training


def test_a_model_without_weights_and_a_device_without_numbers_are_refused():
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(tiny_hf("gpt2").config)
    with pytest.raises(InputError, match="on the meta device"):
        load_model(empty)
    with pytest.raises(InputError, match="'meta' cannot be used"):
        load_model(tiny_hf("gpt2"), device="meta")
