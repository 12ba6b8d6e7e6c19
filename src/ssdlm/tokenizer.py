"""Text <-> token ids: the one place where strings become ids.  text -> [tokenizer] -> data, api

Any fast tokenizer will do, from a folder or from the Hub. `nested` makes a small vocabulary out of
a large one, so that a model of the large one can still read the tokens of the small one.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, SupportsIndex

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from ssdlm.progress import without_native_lines
from ssdlm.storage.builtin import builtin_folder, is_builtin
from ssdlm.storage.files import (
    MOST_BY_HAND,
    MOST_IN_JSON,
    parse_object,
    read_json,
    read_whole,
    write_text,
)
from ssdlm.storage.hub import download
from ssdlm.values import first_line, quote, shorten

END_OF_TEXT_NAMES = ("<|endoftext|>", "</s>", "[SEP]", "<|end_of_text|>", "<eos>")
"""What tokenizers call the token that ends a document; the first one found counts."""
ROBERTA_SPECIAL_NAMES = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
FILE_NAME, SETTINGS, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
TRIALS = ("", "a", "Two words", "\u16a0 \ua66e \U00010380 \ue000")
"""Texts that show whether a tokenizer works: few vocabularies have all characters of the last."""
HALF = "\ufffd"
"""What stands in a text for bytes that are no character on their own."""


MOST_HOLES = 10**5
"""Ids without a token, at the most: lists are as long as the largest id."""
MOST_EXPANSION = 10**4
"""Characters that rules of replacement may make of one."""


def is_utf8(text: str) -> bool:
    """Tell whether a text has no half of a character, which no bytes stand for."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Tokenizer:
    """A `tokenizers.Tokenizer` that adds nothing: no special tokens, no padding, no truncation."""

    def __init__(self, backend: tokenizers.Tokenizer, settings: Mapping[str, str] | None = None):
        # Many tokenizers of the Hub come set to cut at a model's length.
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.plain_backend = copy.deepcopy(backend)
        """The same, but it reads the names of special tokens as text."""
        self.plain_backend.encode_special_tokens = True
        vocab = backend.get_vocab(with_added_tokens=True)
        self.V: int = max(vocab.values(), default=-1) + 1
        """Ids are 0 .. V - 1."""
        require_dense(vocab.values(), "the tokenizer")
        self.settings = dict(settings or {})
        """bos_token, eos_token and chat_template, as far as its folder has them."""
        named = vocab.get(self.settings.get("eos_token", ""))
        self.end_of_text: int = find_end_of_text(backend) if named is None else named
        self.other_ends: tuple[int, ...] = ()
        """More tokens that end a text of a causal language model."""
        self.is_whole: dict[int, bool] = {}
        """Of tokens that ended a context: whether they end with a whole character by themselves."""
        self.answers_greedily = False
        """Whether a causal language model answers messages without drawing at random."""
        self.begin: list[int] = []
        """What stands before every prompt."""
        self.start = [self.end_of_text]
        """What stands before an empty text; nothing where a model knows no such token."""

    @property
    def ends(self) -> tuple[int, ...]:
        """All tokens at which a text is over; the first is the one that is written for that."""
        return (self.end_of_text, *self.other_ends)

    def encode_prompt(self, text: str) -> list[int]:
        """Return the ids of a prompt, before which stands what the model wants there."""
        ids = self.encode(text)
        has_begun = ids[: len(self.begin)] == self.begin
        return (ids if has_begun else self.begin + ids) if text else list(self.start)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; the name of a special token in it becomes that token."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, names of special tokens being text like any other."""
        encodings = self.plain_backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Iterable[SupportsIndex], skip_special_tokens: bool = False) -> str:
        """Return the text of the ids, spaces exactly as the tokens have them."""
        plain: Any = ids if isinstance(ids, list) else [int(i) for i in ids]
        return self.backend.decode(plain, skip_special_tokens=skip_special_tokens)

    def decode_after(self, context: Sequence[int], ids: Sequence[int]) -> str:
        """Return what the ids add to the text of a context, a space between the two included.

        A context may end inside a character; then the ids are read on their own.
        """
        if self.joining == "always" and not self.ends_inside(context):
            return self.decode(ids)
        before, whole = self.decode(context), self.decode([*context, *ids])
        return whole.removeprefix(before) if whole.startswith(before) else self.decode(ids)

    def ends_inside(self, context: Sequence[int]) -> bool:
        """Tell whether a context ends inside a character."""
        if context and context[-1] not in self.is_whole:
            alone = self.decode(context[-1:])
            self.is_whole[context[-1]] = bool(alone) and not alone.endswith(HALF)
        if context and self.is_whole[context[-1]]:
            return False
        # A character has four bytes at most, and no token has none.
        return self.decode(context[-4:]).endswith(HALF)

    def token_strings(self) -> list[str]:
        """Return every token as the vocabulary spells it, by id."""
        strings = [""] * self.V
        for string, i in self.backend.get_vocab(with_added_tokens=True).items():
            strings[i] = string
        return strings

    def token_bytes(self) -> list[bytes]:
        """Return what each token adds to a text, in bytes; a character may take several tokens."""
        strings, decoder = self.token_strings(), json.dumps(json.loads(self.to_json())["decoder"])
        if "ByteLevel" in decoder:
            codes = {symbol: byte for byte, symbol in byte_symbols().items()}
            is_bytes = [all(symbol in codes for symbol in string) for string in strings]
            return [
                bytes(codes[symbol] for symbol in string) if plain else string.encode()
                for string, plain in zip(strings, is_bytes, strict=True)
            ]
        # Decoders treat the start of a text in their own way, so each token follows a word.
        first = next((i for i in range(self.V) if re.fullmatch("[A-Za-z]+", self.decode([i]))), 0)
        head = self.decode([first])
        spellings = [self.decode([first, i]).removeprefix(head).encode() for i in range(self.V)]
        if "ByteFallback" in decoder:
            for i, string in enumerate(strings):
                if match := re.fullmatch("<0x([0-9A-F]{2})>", string):
                    spellings[i] = bytes.fromhex(match[1])
        return spellings

    @cached_property
    def joining(self) -> Literal["always", "after a text", "never"]:
        """Whether the text of some tokens is what each of them adds, one after another."""
        decoder: dict[str, Any] = json.loads(self.to_json())["decoder"] or {"type": "none"}
        decoders: list[dict[str, Any]] = decoder.get("decoders", [decoder])
        kinds = {one["type"] for one in decoders}
        if kinds <= {"ByteLevel", "Fuse"}:
            return "always"
        # The others of these drop a space, but only where a text begins.
        is_late = kinds <= {"ByteLevel", "Fuse", "Replace", "ByteFallback", "Metaspace", "Strip"}
        return "after a text" if is_late else "never"

    def special_ids(self) -> list[int]:
        """Return the ids of the special tokens, ascending."""
        return sorted(special_tokens(self.backend).values())

    def to_json(self) -> str:
        """Return the whole tokenizer, as `tokenizer.json` has it."""
        return self.backend.to_str(pretty=True)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the `tokenizer.json` that `save` writes."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `tokenizer.json`, and the few lines that make `transformers` open the folder."""
        os.makedirs(folder, exist_ok=True)
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **self.settings,
            "eos_token": self.token_strings()[self.end_of_text],
            "clean_up_tokenization_spaces": False,
        }
        write_text(Path(folder, SETTINGS), json.dumps(settings, indent=1) + "\n")
        write_text(Path(folder, FILE_NAME), self.to_json())

    def __reduce__(self) -> tuple[Any, ...]:
        names = ("end_of_text", "other_ends", "answers_greedily", "begin", "start")
        state = {name: getattr(self, name) for name in names}
        return tokenizer_from_json, (self.to_json(), self.settings), state


def load_tokenizer(name_or_path: str | os.PathLike[str]) -> Tokenizer:
    """Return the tokenizer of `builtin:NAME`, a folder, a `tokenizer.json`, or a Hub id."""
    if is_builtin(name_or_path):
        return load_tokenizer(builtin_folder(str(name_or_path)))
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return Tokenizer(load_folder(path), load_settings(path))
    if path.is_file():
        return Tokenizer(load_file(path))
    name = os.fspath(name_or_path)
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", name):
        raise ValueError(f"tokenizer {name} is not there; give a folder, builtin:mini or a Hub id")
    return Tokenizer(load_from_hub(name))


def load_causal_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a causal language model, whose texts begin and end as it says."""
    tokenizer, model = load_tokenizer(folder), read_json(folder / "config.json")
    path = folder / "generation_config.json"
    writing = read_json(path) if path.is_file() else {}
    backend, numbers = tokenizer.backend, {}
    for kind in ("bos", "eos"):
        number = backend.token_to_id(tokenizer.settings.get(f"{kind}_token", ""))
        stated = writing.get(f"{kind}_token_id", model.get(f"{kind}_token_id"))
        listed = [number, *(stated if isinstance(stated, list) else [stated])]
        numbers[kind] = [one for one in listed if isinstance(one, int) and 0 <= one < tokenizer.V]
    # Many put a token before a text, and a few one behind it, which a prompt does not want.
    whole, plain = (backend.encode("a", add_special_tokens=has).ids for has in (True, False))
    places = reversed(range(len(whole) - len(plain) + 1))
    first = next((at for at in places if whole[at : at + len(plain)] == plain), 0)
    tokenizer.begin, tokenizer.start = whole[:first], whole[:first] or numbers["bos"][:1]
    tokenizer.end_of_text = next(iter(numbers["eos"]), tokenizer.end_of_text)
    others = (one for one in numbers["eos"] if one != tokenizer.end_of_text)
    tokenizer.other_ends = tuple(dict.fromkeys(others))
    tokenizer.answers_greedily = writing.get("do_sample") is not True
    return tokenizer


def require_tokens(tokenizer: Tokenizer, model: Path, *, of: Path, remedy: str) -> None:
    """Refuse a tokenizer, that `of` a folder, whose tokens are others than a model's."""
    if not (model / FILE_NAME).is_file():
        return
    own, theirs = tokenizer.token_strings(), load_tokenizer(model).token_strings()
    if own != theirs[: len(own)]:
        raise ValueError(
            f"{of / FILE_NAME} has other tokens than {model / FILE_NAME}, which is of the model; "
            f"{remedy}"
        )


def nested(source: str | os.PathLike[str] | Tokenizer, size: int) -> Tokenizer:
    """Return the byte-level BPE of a source's first merges: `size` tokens, end-of-text the last.

    Ids are the 256 bytes in GPT-2's order, then the merges in theirs, so that they are GPT-2's own
    ids below the last; GPT-2 and RoBERTa share their merges and give the same tokenizer.
    """
    tokenizer = source if isinstance(source, Tokenizer) else load_tokenizer(source)
    merges = byte_level_merges(tokenizer, source)
    vocab = {symbol: i for i, symbol in enumerate(byte_symbols().values())}
    smallest = len(vocab) + 2
    if size < smallest:
        raise ValueError(f"size={size} is too small for the bytes and one merge; use {smallest}")
    used = []
    for left, right in merges:
        if len(vocab) == size - 1:
            break
        used.append((left, right))
        vocab.setdefault(left + right, len(vocab))
    if len(vocab) < size - 1:
        raise ValueError(f"size={size} is more than the source has; use at most {len(vocab) + 1}")
    vocab[END_OF_TEXT_NAMES[0]] = size - 1
    return Tokenizer(byte_level_bpe(vocab, used, [END_OF_TEXT_NAMES[0]]))


def tokenizer_from_json(text: str, settings: Mapping[str, str]) -> Tokenizer:
    """Return the tokenizer that `to_json` wrote; pickles call it."""
    return Tokenizer(tokenizers.Tokenizer.from_str(text), settings)


def load_settings(folder: Path) -> dict[str, str]:
    """Return the names of first and last token, and the chat template, of a tokenizer's folder."""
    found = read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    for name in ("bos_token", "eos_token"):
        if isinstance(found.get(name), dict):
            found[name] = found[name].get("content")
    if isinstance(found.get("chat_template"), list):  # several, each with a name
        if not all(isinstance(one, dict) for one in found["chat_template"]):
            raise ValueError(
                f"{folder / SETTINGS}: chat_template={quote(found['chat_template'])} is no list of "
                "objects with name and template; restore the file"
            )
        named = [one for one in found["chat_template"] if one.get("name") == "default"]
        found["chat_template"] = named[-1].get("template") if named else None
    if (folder / TEMPLATE).is_file():
        raw = read_whole(folder / TEMPLATE, most=MOST_BY_HAND)
        found["chat_template"] = raw.decode(errors="replace")
    names = ("bos_token", "eos_token", "chat_template")
    return {name: found[name] for name in names if isinstance(found.get(name), str)}


def load_folder(folder: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer in a folder, as the library or as GPT-2 lays it out."""
    if (folder / FILE_NAME).is_file():
        return load_file(folder / FILE_NAME)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return load_vocab_and_merges(folder)
    raise ValueError(
        f"{folder} has neither tokenizer.json nor vocab.json with merges.txt; "
        "give the folder of a tokenizer"
    )


def load_file(path: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer in a `tokenizer.json`."""
    refuse_hostile(path)
    try:
        with without_native_lines():
            backend = tokenizers.Tokenizer.from_file(str(path))
            backend.no_padding()
            backend.no_truncation()
            for text in TRIALS:
                backend.decode(backend.encode(text).ids)
        return backend
    except BaseException as error:  # bare Exception, or a panic of Rust, which is none
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = shorten(str(error))
        raise ValueError(
            f"{path} is not a tokenizer of the `tokenizers` library ({reason}); get it anew"
        ) from error


def refuse_hostile(path: Path) -> None:
    """Refuse what would fill the memory: ids far beyond the tokens, rules that write much text."""
    raw = read_whole(path, most=MOST_IN_JSON)
    if not re.search(rb':\s*\d{8,}|"Replace"|"Prepend"', raw):
        return
    values = parse_object(raw, where=str(path), remedy="get it anew")
    if expansion([values.get(name) for name in ("normalizer", "decoder")]) > MOST_EXPANSION:
        raise ValueError(f"{path} replaces short texts by very long ones; get it anew")
    model, added = values.get("model"), values.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    named = added if isinstance(added, list) else []
    listed = [one.get("id") for one in named if isinstance(one, dict)]
    ids = [*(vocab.values() if isinstance(vocab, dict) else ()), *listed]
    require_dense([i for i in ids if isinstance(i, int)], path)


def expansion(rules: Any) -> float:
    """Return how many characters the rules of a tokenizer may make of one, at the most."""
    if isinstance(rules, list | tuple):
        return math.prod(map(expansion, rules))
    if not isinstance(rules, dict):
        return 1.0
    factor = math.prod(expansion(value) for value in rules.values())
    pattern, content = rules.get("pattern"), rules.get("content", rules.get("prepend"))
    if isinstance(content, str):
        literal = pattern.get("String") if isinstance(pattern, dict) else None
        if isinstance(literal, str) and literal:
            factor *= max(1.0, len(content) / len(literal))
        else:  # an expression may match nothing at all, between any two characters
            factor *= len(content) + 1.0
    return factor


def require_dense(ids: Collection[int], source: object) -> None:
    """Raise where the largest of some ids is far beyond their number."""
    largest = max(ids, default=-1)
    if not 0 <= largest < len(ids) + MOST_HOLES:
        raise ValueError(
            f"{source} has {len(ids)} tokens and ids up to {largest}; number its tokens from 0 on"
        )


def load_vocab_and_merges(folder: Path) -> tokenizers.Tokenizer:
    """Return GPT-2's or RoBERTa's tokenizer; the names of special tokens tell which it is."""
    try:
        vocab, merges = models.BPE.read_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
        # RoBERTa's vocabulary keeps GPT-2's end-of-text as an ordinary, never trained, entry.
        special = [name for name in ROBERTA_SPECIAL_NAMES if name in vocab]
        if "</s>" not in special:
            special = [name for name in END_OF_TEXT_NAMES[:1] if name in vocab]
        return byte_level_bpe(vocab, merges, special)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(
            f"{folder}: vocab.json and merges.txt do not fit ({shorten(str(error))}); get both anew"
        ) from error


def byte_level_bpe(
    vocab: dict[str, int], merges: list[tuple[str, str]], special: list[str]
) -> tokenizers.Tokenizer:
    """Return a byte-level BPE as GPT-2 has it; special tokens are in the vocabulary."""
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    # In RoBERTa the mask takes the place of a word together with the space before it.
    backend.add_special_tokens([AddedToken(name, lstrip=name == "<mask>") for name in special])
    return backend


def load_from_hub(name: str) -> tokenizers.Tokenizer:
    """Return the tokenizer of a Hub id; `transformers` converts the old kinds."""
    patterns = [FILE_NAME, "vocab.json", "merges.txt"]
    folder = download(name, patterns)
    if any((folder / pattern).is_file() for pattern in patterns):
        return load_folder(folder)
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, use_fast=True).backend_tokenizer
    except Exception as error:  # no fast tokenizer
        raise ValueError(
            f"{name} has no tokenizer that can be used ({first_line(error)}); give another"
        ) from error


def special_tokens(backend: tokenizers.Tokenizer) -> dict[str, int]:
    """Return the ids of the special tokens by name."""
    added = backend.get_added_tokens_decoder()
    return {token.content: i for i, token in added.items() if token.special}


def find_end_of_text(backend: tokenizers.Tokenizer) -> int:
    """Return the id of the end-of-text token, sought among special tokens, then among all."""
    for names in (special_tokens(backend), backend.get_vocab(with_added_tokens=True)):
        for name in END_OF_TEXT_NAMES:
            if name in names:
                return names[name]
    raise ValueError(
        f"the tokenizer has no end-of-text token; add one of {', '.join(END_OF_TEXT_NAMES)} to it"
    )


def byte_level_merges(tokenizer: Tokenizer, source: object) -> list[tuple[str, str]]:
    """Return the ordered merges of a byte-level BPE, whichever way its file spells them."""
    state = json.loads(tokenizer.to_json())
    if state["model"]["type"] != "BPE" or "ByteLevel" not in json.dumps(state["pre_tokenizer"]):
        raise ValueError(f"{source} is not a byte-level BPE; use GPT-2's or RoBERTa's tokenizer")
    pairs = (m.split(" ") if isinstance(m, str) else m for m in state["model"]["merges"])
    return [(left, right) for left, right in pairs]


def byte_symbols() -> dict[int, str]:
    """Return the character that stands for each byte, in GPT-2's order: visible bytes first."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    symbols = {byte: chr(byte) for byte in visible}
    return symbols | {byte: chr(256 + number) for number, byte in enumerate(hidden)}
