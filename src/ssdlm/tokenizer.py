"""Text <-> token ids: the one place where strings become ids.  text -> [tokenizer] -> data, api

Any fast tokenizer will do, from a folder or from the Hub. `nested` makes a small vocabulary out of
a large one, so that what was trained on the large one can still read the tokens of the small one.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, SupportsInt

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from ssdlm.storage.builtin import builtin_folder, is_builtin

END_OF_TEXT_NAMES = ("<|endoftext|>", "</s>", "[SEP]", "<|end_of_text|>", "<eos>")
"""What tokenizers call the token that ends a document, the first one found wins."""
ROBERTA_SPECIAL_NAMES = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
FILE_NAME = "tokenizer.json"


def is_utf8(text: str) -> bool:
    """Tell whether a text has no half of a character, which no bytes stand for."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


class Tokenizer:
    """A `tokenizers.Tokenizer` that adds nothing: no special tokens, no padding, no truncation."""

    def __init__(self, backend: tokenizers.Tokenizer):
        # Many tokenizers of the Hub come set to cut at a model's length.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._plain = copy.deepcopy(backend)
        self._plain.encode_special_tokens = True
        self.V: int = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        """Ids are 0 .. V - 1."""
        self.end_of_text: int = _end_of_text(backend)

    def encode(self, text: str) -> list[int]:
        """The ids of a text; the name of a special token in it becomes that token."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, names of special tokens being text like any other."""
        encodings = self._plain.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Iterable[SupportsInt], skip_special_tokens: bool = False) -> str:
        """The text of the ids, spaces exactly as the tokens hold them."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)

    def decode_after(self, context: Sequence[int], ids: Sequence[int]) -> str:
        """What the ids add to the text of a context: where spaces stand between tokens, that too.

        A context may end inside a character; then the ids are read on their own.
        """
        before, whole = self.decode(context), self.decode([*context, *ids])
        return whole.removeprefix(before) if whole.startswith(before) else self.decode(ids)

    def token_strings(self) -> list[str]:
        """Every token as the vocabulary spells it (byte-level where it is), in the order of ids."""
        strings = [""] * self.V
        for string, i in self._backend.get_vocab(with_added_tokens=True).items():
            strings[i] = string
        return strings

    def token_bytes(self) -> list[bytes]:
        """What each token adds to a text, in bytes; a character may take several tokens."""
        strings, decoder = self.token_strings(), json.dumps(json.loads(self.to_json())["decoder"])
        if "ByteLevel" in decoder:
            codes = dict(zip(_byte_symbols(), _byte_order(), strict=True))
            is_bytes = [all(symbol in codes for symbol in string) for string in strings]
            return [
                bytes(codes[symbol] for symbol in string) if plain else string.encode()
                for string, plain in zip(strings, is_bytes, strict=True)
            ]
        # What a decoder does at the start of a text is told apart by a token before.
        first = next((i for i in range(self.V) if re.fullmatch("[A-Za-z]+", self.decode([i]))), 0)
        head = self.decode([first])
        spellings = [self.decode([first, i]).removeprefix(head).encode() for i in range(self.V)]
        if "ByteFallback" in decoder:
            for i, string in enumerate(strings):
                if match := re.fullmatch("<0x([0-9A-F]{2})>", string):
                    spellings[i] = bytes.fromhex(match[1])
        return spellings

    def special_ids(self) -> list[int]:
        """The ids of the special tokens, ascending."""
        return sorted(_special(self._backend).values())

    def to_json(self) -> str:
        """The whole tokenizer, as `tokenizer.json` holds it."""
        return self._backend.to_str(pretty=True)

    @property
    def digest(self) -> str:
        """The SHA-256 of the `tokenizer.json` that `save` writes."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `tokenizer.json`, and the few lines that make `transformers` open the folder."""
        os.makedirs(folder, exist_ok=True)
        name = self.token_strings()[self.end_of_text]
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": name,
            "clean_up_tokenization_spaces": False,
        }
        _write(Path(folder, "tokenizer_config.json"), json.dumps(settings, indent=1) + "\n")
        _write(Path(folder, FILE_NAME), self.to_json())

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_json, (self.to_json(),)


def load_tokenizer(name_or_path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of `builtin:NAME`, a folder, a `tokenizer.json`, or a model of the Hub."""
    if is_builtin(name_or_path):
        return Tokenizer(_from_folder(builtin_folder(str(name_or_path))))
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return Tokenizer(_from_folder(path))
    if path.is_file():
        return Tokenizer(_from_file(path))
    name = os.fspath(name_or_path)
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", name):
        raise ValueError(f"tokenizer {name} does not exist: give a folder, builtin:mini or Hub id")
    return Tokenizer(_from_hub(name))


def nested(source: str | os.PathLike[str] | Tokenizer, size: int) -> Tokenizer:
    """The byte-level BPE of the source's first merges: `size` tokens, end-of-text the last.

    Ids are the 256 bytes in GPT-2's order, then the merges in theirs, so that they are GPT-2's own
    ids below the last; GPT-2 and RoBERTa share their merges and give the same tokenizer.
    """
    tokenizer = source if isinstance(source, Tokenizer) else load_tokenizer(source)
    merges = _byte_level_merges(tokenizer, source)
    vocab = {symbol: i for i, symbol in enumerate(_byte_symbols())}
    smallest = len(vocab) + 2
    if size < smallest:
        raise ValueError(f"size={size} is too small: {smallest} holds the bytes and one merge")
    used = []
    for left, right in merges:
        if len(vocab) == size - 1:
            break
        used.append((left, right))
        vocab.setdefault(left + right, len(vocab))
    if len(vocab) < size - 1:
        raise ValueError(f"size={size} is more than the source has: use at most {len(vocab) + 1}")
    vocab[END_OF_TEXT_NAMES[0]] = size - 1
    return Tokenizer(_byte_level(vocab, used, [END_OF_TEXT_NAMES[0]]))


def _from_json(text: str) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(text))


def _from_folder(folder: Path) -> tokenizers.Tokenizer:
    if (folder / FILE_NAME).is_file():
        return _from_file(folder / FILE_NAME)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _from_vocab_and_merges(folder)
    raise ValueError(f"{folder} has neither tokenizer.json nor vocab.json with merges.txt")


def _from_file(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(
            f"{path} is not a tokenizer of the `tokenizers` library: {error}"
        ) from error


def _from_vocab_and_merges(folder: Path) -> tokenizers.Tokenizer:
    """GPT-2's or RoBERTa's layout; which one shows in the names of the special tokens."""
    try:
        vocab, merges = models.BPE.read_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
        # RoBERTa's vocabulary keeps GPT-2's end-of-text as an ordinary, never trained, entry.
        special = [name for name in ROBERTA_SPECIAL_NAMES if name in vocab]
        if "</s>" not in special:
            special = [name for name in END_OF_TEXT_NAMES[:1] if name in vocab]
        return _byte_level(vocab, merges, special)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{folder}: vocab.json and merges.txt do not fit: {error}") from error


def _byte_level(
    vocab: dict[str, int], merges: list[tuple[str, str]], special: list[str]
) -> tokenizers.Tokenizer:
    """A byte-level BPE as GPT-2 has it, with special tokens that stand in the vocabulary."""
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    # In RoBERTa the mask takes the place of a word together with the space before it.
    backend.add_special_tokens([AddedToken(name, lstrip=name == "<mask>") for name in special])
    return backend


def _from_hub(name: str) -> tokenizers.Tokenizer:
    """Fetch (or find in the cache) a model's tokenizer; `transformers` converts the old kinds."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ValueError(
            f"tokenizer {name} is no folder here, and the Hub needs `pip install transformers`"
        ) from error
    try:
        patterns = [FILE_NAME, "vocab.json", "merges.txt"]
        folder = Path(snapshot_download(name, allow_patterns=patterns))
        if any((folder / pattern).is_file() for pattern in patterns):
            return _from_folder(folder)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(name, use_fast=True).backend_tokenizer
    except Exception as error:  # network, permission, no such repository, no fast tokenizer
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ValueError(
            f"tokenizer {name} is neither a folder here nor to be had from the Hub: {reason}"
        ) from error


def _special(backend: tokenizers.Tokenizer) -> dict[str, int]:
    added = backend.get_added_tokens_decoder()
    return {token.content: i for i, token in added.items() if token.special}


def _end_of_text(backend: tokenizers.Tokenizer) -> int:
    """The id of the end-of-text token: special tokens come first, then the whole vocabulary."""
    for names in (_special(backend), backend.get_vocab(with_added_tokens=True)):
        for name in END_OF_TEXT_NAMES:
            if name in names:
                return names[name]
    raise ValueError(
        f"the tokenizer has no end-of-text token: add one of {', '.join(END_OF_TEXT_NAMES)} to it"
    )


def _byte_level_merges(tokenizer: Tokenizer, source: object) -> list[tuple[str, str]]:
    """The ordered merges of a byte-level BPE, whichever way its file spells them."""
    state = json.loads(tokenizer.to_json())
    if state["model"]["type"] != "BPE" or "ByteLevel" not in json.dumps(state["pre_tokenizer"]):
        raise ValueError(f"{source} is not a byte-level BPE: use GPT-2's or RoBERTa's tokenizer")
    pairs = (m.split(" ") if isinstance(m, str) else m for m in state["model"]["merges"])
    return [(left, right) for left, right in pairs]


def _byte_symbols() -> list[str]:
    """The character that stands for each byte, in GPT-2's order: the visible bytes come first."""
    visible = _visible_bytes()
    num_hidden = 256 - len(visible)
    return [chr(code) for code in [*visible, *range(256, 256 + num_hidden)]]


def _byte_order() -> list[int]:
    """The bytes in GPT-2's order."""
    visible = _visible_bytes()
    return [*visible, *(code for code in range(256) if code not in visible)]


def _visible_bytes() -> list[int]:
    return [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
