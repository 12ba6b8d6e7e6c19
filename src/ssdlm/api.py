"""A model as its users hold it: text in, text out.  storage, engine -> [api] -> command line

The arguments of `generate` and `stream` are in engine/signature.py, generated from options.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, overload
from weakref import ref

import torch

from ssdlm.config import AdapterConfig
from ssdlm.denoiser import Denoiser, DenoiserModule
from ssdlm.denoiser.adapted import AdaptedDenoiser
from ssdlm.denoiser.drafter import Drafter, base_of
from ssdlm.engine.chat import Messages, chat_text, said
from ssdlm.engine.controls import Control
from ssdlm.engine.drafts import Watcher
from ssdlm.engine.ending import text_of
from ssdlm.engine.explaining import Explanation, about, explain
from ssdlm.engine.plain import Engine, Prompt
from ssdlm.engine.requests import Draft, Generation, Request, Requests, in_order
from ssdlm.engine.rewriting import Rewrite, Rewriting, spans_in
from ssdlm.engine.schedule import UNWANTED
from ssdlm.engine.scoring import Score, pieces_of, score
from ssdlm.engine.signature import Signature
from ssdlm.engine.writers import OptionsWriter
from ssdlm.guidance.gradient import LogProb
from ssdlm.guidance.scorers import Scorer
from ssdlm.guidance.slim import tokenizer_digest
from ssdlm.options import (
    WORDS_OF_SPANS,
    GenerateOptions,
    P,
    R,
    SpanLength,
    advice,
    all_names,
    explained,
)
from ssdlm.storage import checkpoint
from ssdlm.storage.drafter import find_drafter, load_drafter
from ssdlm.storage.files import named_path
from ssdlm.storage.hub import upload
from ssdlm.tokenizer import (
    FILE_NAME,
    Tokenizer,
    load_causal_tokenizer,
    load_tokenizer,
    require_tokens,
)
from ssdlm.values import SWITCH, About, check, choose, quote

LOADING = ("device", "dtype", "deterministic", "drafter", "revision", "local_files_only")
FOREIGN_LOADING = {
    "device_map": "use device, such as cuda or cpu; a model is on one device",
    "torch_dtype": "use dtype",
    "load_in_8bit": "use a model that `ssdlm convert --quantise int8` wrote",
    "load_in_4bit": "use a model that `ssdlm convert --quantise int8` wrote",
    "quantization_config": "use a model that `ssdlm convert --quantise int8` wrote",
    "trust_remote_code": "no code of a model is ever run; leave it out",
    "cache_dir": "set the environment variable HF_HOME",
    "token": "log in with `hf auth login`, or set the environment variable HF_TOKEN",
    "use_auth_token": "log in with `hf auth login`, or set the environment variable HF_TOKEN",
    "force_download": "delete the model from the Hub's cache",
    "attn_implementation": "there is one; leave it out",
    "low_cpu_mem_usage": "leave it out",
    "use_safetensors": "leave it out",
}
"""What other libraries' from_pretrained takes, and what to use instead."""


def loading_advice(name: str) -> str:
    """Return what to write instead of an argument that from_pretrained does not have."""
    near = get_close_matches(name, [*LOADING, *FOREIGN_LOADING], 1, cutoff=0.75)
    if near and near[0] in FOREIGN_LOADING:
        return FOREIGN_LOADING[near[0]]
    if name in all_names():
        return "it is an argument of generate"
    return f"the nearest is {near[0]}" if near else f"there are {', '.join(LOADING)}"


def answered(method: Callable[P, R]) -> Callable[P, R]:
    """Return a way to load that answers an argument it does not have."""
    return explained(method, loading_advice)


def tokenizer_beneath(
    denoiser: AdaptedDenoiser, folder: Path, own: Tokenizer | None
) -> Tokenizer | None:
    """Return an adapter's own copy of its language model's tokenizer, or that one; refuse others.

    The adapter then knows it by digest, and its texts begin and end as that model's.
    """
    base = checkpoint.find(denoiser.config.base)
    if not (base / FILE_NAME).is_file():
        return own
    theirs = load_causal_tokenizer(base)
    digest = tokenizer_digest(theirs)
    if own is None and denoiser.config.tokens not in ("", digest):
        raise ValueError(
            f"{base / FILE_NAME} has other tokens than when the adapter was trained; restore it"
        )
    if own is not None and tokenizer_digest(own) != digest:
        require_tokens(own, base, of=folder, remedy="restore the one that changed")
    denoiser.config = replace(denoiser.config, tokens=digest)
    tokenizer = own or theirs
    for name in ("begin", "start", "end_of_text", "other_ends"):
        setattr(tokenizer, name, getattr(theirs, name))
    tokenizer.answers_greedily = False  # it says itself how it writes
    return tokenizer


def drafter_finder(
    denoiser: DenoiserModule, folder: Path, given: str | Path | None
) -> Callable[[], Drafter | None]:
    """Return what finds the drafter of a model when it is needed; one that is given is read now."""
    network = base_of(denoiser)
    is_adapter = isinstance(denoiser, AdaptedDenoiser)
    home = checkpoint.find(denoiser.config.base) if is_adapter else folder
    if given is not None:
        if network is None:
            raise ValueError(
                f"drafter={quote(str(given))}: a {type(denoiser).__name__} takes none; leave it out"
            )
        drafter = load_drafter(named_path(given, "drafter"), network, home)
        return lambda: drafter
    beside = find_drafter(home) if network is not None else None
    if network is None or beside is None:
        return lambda: None
    return lambda: load_drafter(beside, network, home)


def has_tokens_of_base(denoiser: DenoiserModule, tokenizer: Tokenizer) -> bool:
    """Tell whether a denoiser is an adapter that knows this tokenizer as its language model's."""
    config = denoiser.config
    return isinstance(config, AdapterConfig) and config.tokens == tokenizer_digest(tokenizer)


def check_watchable(request: Request, why: str = "a stream shows one text; use generate") -> None:
    """Raise on a text for which several compete: none of them is the one to watch."""
    if (count := request.options.best_of) != 1:
        raise ValueError(f"best_of={count}: {why}")
    if (count := request.num_candidates) > 1:
        raise ValueError(f"gap has {count} lengths: {why}")


class SSDLM(Signature):
    """A denoiser, its tokenizer and its own generation options.

    >>> model = SSDLM.from_pretrained("builtin:mini")
    >>> print(model.generate("The river had", length=50, seed=0).text)  # doctest: +SKIP
    """

    def __init__(
        self,
        denoiser: Denoiser,
        tokenizer: Tokenizer | None = None,
        options: GenerateOptions | None = None,
        *,
        deterministic: bool = False,
        find_drafter: Callable[[], Drafter | None] = lambda: None,
    ) -> None:
        if tokenizer is not None and tokenizer.V > denoiser.V:
            raise ValueError(
                f"the tokenizer has {tokenizer.V} tokens and the model {denoiser.V}; "
                "give the tokenizer the model was trained with"
            )
        self.denoiser = denoiser
        self.tokenizer = tokenizer
        self.options = options or GenerateOptions()
        self.engine = Engine(
            denoiser, tokenizer, is_deterministic=deterministic, find_drafter=find_drafter
        )

    @classmethod
    @answered
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        deterministic: bool = False,
        drafter: str | Path | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
    ) -> SSDLM:
        """Open `builtin:mini`, a folder or a Hub id, in our layout, the authors' or transformers'.

        By default bfloat16 on a GPU where that writes as well, float32 elsewhere. On a GPU rounding
        depends on how many texts go together; with `deterministic` a text is the same whatever else
        is being written, at some cost. On a CPU it always is. `drafter` is the folder of one for
        mode=speculative; without it, a model has the one beside it, if any. `revision` is a branch,
        tag or commit of the Hub; with `local_files_only` nothing is downloaded.
        """
        folder = checkpoint.find(name_or_path, revision=revision, local_files_only=local_files_only)
        dtype = str(dtype).removeprefix("torch.")
        denoiser = checkpoint.load_denoiser(folder, device=str(device), dtype=dtype)
        if denoiser.device.type == "cpu":
            denoiser.store_for_cpu()
        has_tokenizer = any((folder / name).exists() for name in ("tokenizer.json", "vocab.json"))
        load = load_causal_tokenizer if checkpoint.is_causal(folder) else load_tokenizer
        tokenizer = load(folder) if has_tokenizer else None
        if isinstance(denoiser, AdaptedDenoiser):
            tokenizer = tokenizer_beneath(denoiser, folder, tokenizer)
        options = checkpoint.load_options(folder) or GenerateOptions(B=(denoiser.config.B,))
        find_drafter = drafter_finder(denoiser, folder, drafter)
        return cls(
            denoiser, tokenizer, options, deterministic=deterministic, find_drafter=find_drafter
        )

    def save_pretrained(self, folder: str | Path, *, quantise: str = "none") -> None:
        """Write config.json, model.safetensors, tokenizer.json and generation_config.json.

        With quantise="int8" the weights take a quarter of the space, and lose a little. An adapter
        gets no copy of its language model's tokenizer, which config.json knows by its digest.
        """
        save = {"none": checkpoint.save_denoiser, "int8": checkpoint.save_as_int8}
        choose("quantise", quantise, tuple(save))
        if not isinstance(self.denoiser, DenoiserModule):
            raise ValueError(
                f"a {type(self.denoiser).__name__} has no weights to save; use a DenoiserModule"
            )
        if self.denoiser.most_open is not None:
            raise ValueError(
                f"a {type(self.denoiser).__name__} stays in the folder that transformers wrote; "
                "copy that"
            )
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        save[quantise](self.denoiser, folder)
        checkpoint.save_options(self.options, folder)
        if self.tokenizer is not None and not has_tokens_of_base(self.denoiser, self.tokenizer):
            self.tokenizer.save(folder)

    @property
    def device(self) -> torch.device:
        return self.denoiser.device

    @property
    def options(self) -> GenerateOptions:
        """The model's own options: what a call leaves out is as they say."""
        return self.own_options

    @options.setter
    def options(self, options: GenerateOptions) -> None:
        self.own_options = options.as_own()

    def to(
        self,
        device: str | torch.device | torch.dtype | None = None,
        dtype: str | torch.dtype | None = None,
    ) -> SSDLM:
        """Move the model to a device, or to other numbers, and return it: as `torch.nn.Module.to`.

        Guides that it has loaded follow when they are used next.
        """
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        if not isinstance(self.denoiser, DenoiserModule):
            raise ValueError(
                f"a {type(self.denoiser).__name__} has no weights to move; use a DenoiserModule"
            )
        self.denoiser.to(
            device=None if device is None else checkpoint.resolve_device(str(device)),
            dtype=None if dtype is None else checkpoint.resolve_dtype(str(dtype)),
        )
        if self.device.type == "cpu":
            self.denoiser.store_for_cpu()
        old = self.engine
        self.engine = Engine(
            self.denoiser,
            self.tokenizer,
            is_deterministic=old.is_deterministic,
            find_drafter=old.find_drafter,
        )
        return self

    def __repr__(self) -> str:
        return f"SSDLM({about(self.engine)}, on {self.device})"

    def run(
        self,
        prompts: str | Sequence[Prompt],
        changes: Mapping[str, Any],
        options: GenerateOptions | None,
        keep_steps: bool = False,
    ) -> Generation | list[Generation]:
        """Continue prompts with some options changed: what `generate` does."""
        requests = self.requests(prompts, changes, options)
        ordered: list[Generation] = []
        if check("keep_steps", keep_steps, About(SWITCH, "", "")):
            for one, *_ in requests.firsts:
                check_watchable(one, "keep_steps keeps those of one text; leave it out")
            ordered += map(self.engine.keep, requests)
        else:
            ordered += in_order(self.engine.write(requests))
        contexts = [
            one.context for (one, *_) in requests.firsts for _ in range(one.options.num_samples)
        ]
        for text, context in zip(ordered, contexts, strict=True):
            vars(text)["rater"] = partial(pieces_of, ref(self.engine), context)
        return ordered[0] if isinstance(prompts, str) and len(ordered) == 1 else ordered

    def run_stream(
        self,
        prompt: Prompt,
        changes: Mapping[str, Any],
        options: GenerateOptions | None,
        candidates: int = 0,
        guides: str | Sequence[str] = (),
        states: bool = False,
    ) -> Iterator[Draft]:
        """Continue one prompt, step by step: what `stream` does."""
        requests = self.requests([prompt], changes, options)
        if (count := requests[0].options.num_samples) != 1:
            raise ValueError(f"num_samples={count}: a stream shows one text; use generate")
        check_watchable(requests[0])
        return self.engine.stream(requests[0], candidates=candidates, guides=guides, states=states)

    def chat(self, messages: Messages | str, **options: Any) -> Generation | list[Generation]:
        """Answer messages such as {"role": "user", "content": "..."}, until the end of the turn.

        A text is one message of a user. The tokenizer's own chat template makes a prompt of them.
        Options are those of `generate`.
        """
        return self.generate(chat_text(self.tokenizer, said(messages)), **options)

    def rewrite(
        self,
        text: str,
        spans: Sequence[Sequence[int]],
        *,
        length: SpanLength = "equal",
        alternatives: int = 1,
        options: GenerateOptions | None = None,
        **changes: Any,
    ) -> list[Rewrite]:
        """Write spans of a text anew, in view of both sides; the rest stays as it is.

        A span is two places in characters. It gets as many tokens as it had, or with
        length="free" the likeliest of several lengths. Alternatives differ in their seeds, from
        `seed` on. Options are those of `generate`, and may be lists with one for each span.
        """
        found = spans_in(text, spans)
        if unknown := [name for name in changes if name not in all_names()]:
            use = advice(unknown[0], WORDS_OF_SPANS, ("length", "alternatives", "options"))
            raise ValueError(f"there is no option {unknown[0]!r}; {use}")
        own = self.base_options(options).per_prompt(len(found), of="spans", **changes)
        work = Rewriting(self.engine, text, found, own, length=length, alternatives=alternatives)
        for number in range(len(found)):
            self.engine.prepare(*work.asked(number))  # what cannot be written is refused at once
        while work.num_done < len(found):
            requests = self.engine.prepare(*work.asked(work.num_done))
            work.take(list(in_order(self.engine.write(requests))))
        return work.results()

    @overload
    def score(  # pyright: ignore[reportOverlappingOverload]
        self, texts: str, *, prompt: Prompt = ""
    ) -> Score: ...
    @overload
    def score(self, texts: Sequence[Prompt], *, prompt: Prompt = "") -> list[Score]: ...
    def score(self, texts: str | Sequence[Prompt], *, prompt: Prompt = "") -> Score | list[Score]:
        """Rate texts token by token, each after the prompt: by the context stream, exactly."""
        if isinstance(texts, str):
            return score(self.engine, texts, prompt)
        if isinstance(texts, bytes | Mapping | Set) or not isinstance(texts, Iterable):
            raise ValueError(f"texts={quote(texts)} is not a text or a list of texts; give one")
        return [score(self.engine, text, prompt) for text in texts]

    @cached_property
    def thread(self) -> ThreadPoolExecutor:
        """Where calls of `generate_async` and `stream_async` are done, one at a time."""
        return ThreadPoolExecutor(1, "ssdlm")

    async def generate_async(
        self, prompts: str | Sequence[Prompt], **options: Any
    ) -> Generation | list[Generation]:
        """Return what `generate` does, and let an event loop go on meanwhile.

        Where the call is cancelled, its texts end at the next pass that somebody looks at.
        """
        is_gone = Event()

        def call() -> Generation | list[Generation]:
            UNWANTED.set(is_gone.is_set)
            return self.generate(prompts, **options)

        run = partial(copy_context().run, call)
        try:
            return await asyncio.get_running_loop().run_in_executor(self.thread, run)
        finally:
            is_gone.set()

    async def stream_async(self, prompt: Prompt, **options: Any) -> AsyncIterator[Draft]:
        """Yield what `stream` does, and let an event loop go on meanwhile."""
        run = asyncio.get_running_loop().run_in_executor
        drafts = await run(self.thread, partial(self.stream, prompt, **options))
        while (draft := await run(self.thread, next, drafts, None)) is not None:
            yield draft

    def push_to_hub(self, name: str, *, private: bool | None = None, quantise: str = "none") -> str:
        """Write the model as `save_pretrained` does to a repository of the Hub; return its address.

        The repository is created where there is none. It needs `hf auth login`, or HF_TOKEN.
        """
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder, quantise=quantise)
            return upload(name, folder, private=private)

    def explain(
        self,
        prompt: Prompt = "",
        *,
        stream: bool = False,
        states: bool = False,
        options: GenerateOptions | None = None,
        **changes: Any,
    ) -> Explanation:
        """Return how `generate`, or `stream`, would write a text with these arguments.

        `states` is for a stream with candidates, guides or states. Nothing is written; what has no
        text is refused as there. Printed, it is plain words.
        """
        (firsts,) = self.requests([prompt], changes, options).firsts
        if stream or states:
            check_watchable(firsts[0])
            Watcher(self.engine.controls, firsts[0])  # which refuses particles
        is_watched = firsts[0].is_watched or stream or states
        watched = {"is_watched": is_watched, "keeps_states": states}
        return explain(self.engine, [replace(one, **watched) for one in firsts])

    def requests(
        self,
        prompts: str | Sequence[Prompt],
        changes: Mapping[str, Any] | None = None,
        options: GenerateOptions | None = None,
    ) -> Requests:
        """Return what to write; all bad input is refused here."""
        if isinstance(prompts, str | bytes | Mapping | Set) or not isinstance(prompts, Iterable):
            prompts = [prompts]
        listed, base = list(prompts), self.base_options(options)
        return self.engine.prepare(listed, base.per_prompt(len(listed), **changes or {}))

    def base_options(self, options: GenerateOptions | None) -> GenerateOptions:
        """Return the options that a call changes: those given, or the model's own."""
        own = self.options
        if options is None:
            return own
        if not isinstance(options, GenerateOptions):
            raise TypeError(f"options={quote(options)} is not a GenerateOptions; give arguments")
        return options.since(
            {n: getattr(own, n) for n in (*options.differing(own), *options.began)}
        )

    def writer(self, **changes: Any) -> OptionsWriter:
        """Return what continues the lines of a file of prompts, with some options changed."""
        return OptionsWriter(self.engine, self.options.change(**changes))

    def context(self, prompt: Prompt) -> tuple[int, ...]:
        """Return a prompt's ids; an empty text begins as the tokenizer says."""
        return self.engine.context(prompt)

    def text(self, tokens: Sequence[int], context: Sequence[int] = ()) -> str:
        """Return what token ids add to a context; without a tokenizer, the ids themselves."""
        return text_of(self.tokenizer, tokens, context)

    def spellings(self) -> list[str]:
        """Return the text of each token on its own; nothing where there is no tokenizer."""
        if self.tokenizer is None:
            return []
        return [self.tokenizer.decode([token]) for token in range(self.tokenizer.V)]

    def fit(self, control: Control) -> LogProb:
        """Return a guide's log-probability of its label for this model's vocabulary."""
        controls = self.engine.controls
        guide = controls.guide(control, self.options)
        if isinstance(guide, Scorer):
            raise ValueError(
                f"scorer {guide.name} reads texts, so it has no gradient to fit; give it as control"
            )
        return controls.fit(guide)
