"""A model as its users hold it: text in, text out.  checkpoint, sampler, control -> [api] -> cli"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, overload

import torch

from ssdlm.config import DecodeConfig, choose, require
from ssdlm.constraints.constrained import constrained
from ssdlm.constraints.words import ConstraintCompiler, text_constraints
from ssdlm.denoiser import Denoiser, DenoiserModule
from ssdlm.diffusion import likelihood
from ssdlm.diffusion.noise import RowNoise
from ssdlm.diffusion.projection import untruncated
from ssdlm.diffusion.sampler import Step, generate
from ssdlm.engine.requests import Draft, Generation, Row, batches
from ssdlm.engine.strategy import decode_config, strategy_of
from ssdlm.guidance import ClassifierGuide, load_guide
from ssdlm.guidance.fitting import check_lam, refuse_contradictions, suggested_lam
from ssdlm.guidance.gradient import LogProb, guided, weighted
from ssdlm.shapes import Tensor
from ssdlm.storage import checkpoint
from ssdlm.tokenizer import Tokenizer, is_utf8, load_tokenizer

CONSTRAINTS = ("must", "must_not", "suffix", "pin", "end_at_sentence")
Prompt = str | Sequence[int]
Control = str | ClassifierGuide | LogProb
"""`sentiment=positive:500`, or a guide, or any function from context ids and logits."""


class SSDLM:
    """A denoiser, its tokenizer and its decoding settings."""

    def __init__(
        self,
        denoiser: Denoiser,
        tokenizer: Tokenizer | None = None,
        decoding: DecodeConfig | None = None,
    ) -> None:
        if tokenizer is not None and tokenizer.V > denoiser.V:
            raise ValueError(
                f"the tokenizer has {tokenizer.V} tokens and the model {denoiser.V}; "
                "give the tokenizer the model was trained with"
            )
        self.denoiser = denoiser
        self.tokenizer = tokenizer
        self.decoding = decoding or DecodeConfig()

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path, *, device: str = "auto", dtype: str = "float32"
    ) -> SSDLM:
        """Open `builtin:mini`, a folder or a Hub id, in our layout or the authors'."""
        folder = checkpoint.find(name_or_path)
        denoiser = checkpoint.load_denoiser(folder, device=device, dtype=dtype)
        if denoiser.device.type == "cpu":
            denoiser.store_for_cpu()
        has_tokenizer = any((folder / name).exists() for name in ("tokenizer.json", "vocab.json"))
        tokenizer = load_tokenizer(folder) if has_tokenizer else None
        decoding = checkpoint.load_decoding(folder) or DecodeConfig(B=(denoiser.config.B,))
        return cls(denoiser, tokenizer, decoding)

    @property
    def device(self) -> torch.device:
        return self.denoiser.device

    def save_pretrained(self, folder: str | Path, *, quantise: str = "none") -> None:
        """Write config.json, model.safetensors, tokenizer.json and generation_config.json.

        With quantise="int8" the weights take a quarter of the space, and lose a little.
        """
        save = {"none": checkpoint.save_denoiser, "int8": checkpoint.save_as_int8}
        choose("quantise", quantise, tuple(save))
        if not isinstance(self.denoiser, DenoiserModule):
            raise ValueError(
                f"a {type(self.denoiser).__name__} has no weights to save; use a DenoiserModule"
            )
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        save[quantise](self.denoiser, folder)
        checkpoint.save_decoding(self.decoding, folder)
        if self.tokenizer is not None:
            self.tokenizer.save(folder)

    @overload
    def generate(self, prompts: str, **options: Any) -> Generation: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def generate(self, prompts: Sequence[Prompt], **options: Any) -> list[Generation]: ...

    def generate(
        self, prompts: str | Sequence[Prompt], **options: Any
    ) -> Generation | list[Generation]:
        """Continue one prompt, or several; `num_samples` continuations of each, prompt by prompt.

        Options are those of `plan`, of `text_constraints` (docs/constraints.md) and of
        `DecodeConfig` (docs/choosing.md). A row's tokens depend on its prompt, seed, sample number
        and constraints alone, not on the rows beside it.
        """
        written = dict(self.generate_each(prompts, **options))
        ordered = [written[index] for index in sorted(written)]
        return ordered[0] if isinstance(prompts, str) and len(ordered) == 1 else ordered

    def generate_each(
        self,
        prompts: str | Sequence[Prompt],
        *,
        best_of: int = 1,
        **options: Any,
    ) -> Iterator[tuple[int, Generation]]:
        """Yield (row number, text) as texts get done: rows of one prompt length at a time.

        With `best_of`, each is the likeliest of so many, as the context stream sees them.
        """
        tried: dict[int, list[tuple[float, Generation]]] = {}
        for index, row, text in self.candidates(prompts, best_of=best_of, **options):
            if best_of == 1:
                yield index, text
                continue
            group = tried.setdefault(index // best_of, [])
            group.append((likelihood.text_nll(self.denoiser, row.context, text.tokens), text))
            if len(group) == best_of:
                del tried[index // best_of]
                best = min(group, key=lambda rated: rated[0])[1]
                calls = sum(text.calls + 1 for _, text in group)
                yield index // best_of, replace(best, sample=row.sample // best_of, calls=calls)

    def candidates(
        self, prompts: str | Sequence[Prompt], *, batch_size: int = 32, **options: Any
    ) -> Iterator[tuple[int, Row, Generation]]:
        """Yield every text that is written, as it gets done, with its row and that one's number."""
        require(batch_size >= 1, "batch_size", batch_size, "a batch has 1 text or more")
        rows, decoding, denoiser = self.plan(prompts, **options)
        # A CPU takes rows one by one anyway; texts that get done one by one can be saved so.
        is_alone = self.device.type == "cpu" and options.get("reduction", "sum") == "sum"
        for indices in batches(rows, 1 if is_alone else batch_size, decoding):
            batch = [rows[index] for index in indices]
            tokens, calls = drain(self.steps(batch, decoding, denoiser))
            passes = max(calls) + self.denoiser.num_context_passes
            for index, row, ids in zip(indices, batch, tokens.tolist(), strict=True):
                yield index, row, self.finish(row, ids, decoding, passes)

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Draft]:
        """Yield every step of one continuation, so that one can watch it settle."""
        count = options.get("best_of", 1)
        require(count == 1, "best_of", count, "a stream shows one text; use generate")
        rows, decoding, denoiser = self.plan([prompt], **options)
        settled: list[int] = []
        for step in self.steps(rows[:1], decoding, denoiser):
            tokens = settled + step.tokens[0].tolist()
            text = self.text(self.cut(rows[0], tokens, decoding), rows[0].context)
            yield Draft(text, self.text(settled, rows[0].context), step.block, step.t, step)
            settled = tokens if step.is_last else settled

    def plan(
        self,
        prompts: str | Sequence[Prompt],
        *,
        seed: int | Sequence[int] = 0,
        num_samples: int = 1,
        best_of: int = 1,
        control: Control | Sequence[Control] | None = (),
        lam: float | Sequence[float] | None = None,
        reduction: Literal["sum", "mean"] = "sum",
        **options: Any,
    ) -> tuple[list[Row], DecodeConfig, Denoiser]:
        """Return what to write, how, and with which denoiser; all bad input is refused here."""
        is_number = type(best_of) is int and best_of >= 1
        require(is_number, "best_of", best_of, "choose among 1 text or more")
        if best_of > 1 and not self.denoiser.has_context_stream:
            raise ValueError(
                f"best_of={best_of} needs a context stream, a BlockDenoiser; use best_of=1"
            )
        rows = self.rows(prompts, seed=seed, num_samples=num_samples * best_of)
        asked = {name: options.pop(name) for name in CONSTRAINTS if name in options}
        decoding = decode_config(self.decoding, **options)
        strategy = strategy_of(decoding, self.denoiser)
        if any(asked.values()):
            if strategy.truncate is not untruncated and decoding.returns == "logits":
                drawn = "returns=w_0, or " if decoding.projection != "mean" else ""
                raise ValueError(
                    f"{', '.join(asked)}: with nucleus=network or a temperature, words are certain "
                    f"only as they are drawn; use {drawn}nucleus=logits and temperature=1"
                )
            rows = self.constrain(rows, decoding, num_samples * best_of, asked)
        return rows, decoding, self.controlled(control, lam, reduction, decoding)

    def rows(
        self, prompts: str | Sequence[Prompt], *, seed: int | Sequence[int], num_samples: int
    ) -> list[Row]:
        """Return a row for each sample of each prompt."""
        if isinstance(prompts, str) or not isinstance(prompts, Iterable):
            prompts = [prompts]
        prompts = list(prompts)
        seeds = [seed] * len(prompts) if isinstance(seed, int) else list(seed)
        if not prompts:
            raise ValueError("there are no prompts; give at least one, which may be empty")
        if len(seeds) != len(prompts):
            raise ValueError(f"{len(seeds)} seeds for {len(prompts)} prompts; give one seed each")
        for seed in seeds:
            if type(seed) is not int or not 0 <= seed < 2**63:
                raise ValueError(f"seed={seed!r} is not a whole number from 0 to 2**63 - 1")
        if num_samples < 1:
            raise ValueError(f"num_samples={num_samples} writes nothing; use 1 or more")
        return [
            Row(prompt if isinstance(prompt, str) else self.text(prompt), ids, seed, sample)
            for prompt, seed in zip(prompts, seeds, strict=True)
            for ids in [self.context(prompt)]
            for sample in range(num_samples)
        ]

    def constrain(
        self, rows: Sequence[Row], decoding: DecodeConfig, num_samples: int, asked: dict[str, Any]
    ) -> list[Row]:
        """Return the rows, each with a placement for what was asked of its prompt."""
        if self.tokenizer is None:
            raise ValueError(f"{', '.join(asked)}: words need a tokenizer, and this model has none")
        compiler = ConstraintCompiler(
            self.tokenizer,
            V=self.denoiser.V,
            max_len=self.denoiser.max_len,
            length=decoding.length,
            stop_at_end=decoding.stop_at_end,
        )
        contexts = [row.context for row in rows[::num_samples]]
        constraints = text_constraints(len(contexts), **asked)
        placements = list(map(compiler.compile, constraints, contexts))
        return [replace(row, placement=placements[i // num_samples]) for i, row in enumerate(rows)]

    def context(self, prompt: Prompt) -> tuple[int, ...]:
        """Return a prompt's ids; an empty text begins after an end-of-text token."""
        if not isinstance(prompt, str):
            ids = token_ids(prompt)
            if any(not 0 <= token < self.denoiser.V for token in ids):
                raise ValueError(f"prompt ids {prompt} reach outside 0..{self.denoiser.V - 1}")
            return ids
        if self.tokenizer is None:
            raise ValueError(
                "this checkpoint has no tokenizer; give prompts as lists of ids, or put "
                "tokenizer.json beside its weights"
            )
        if not is_utf8(prompt):
            raise ValueError(f"prompt {prompt!r} is not UTF-8; save or type it as UTF-8")
        return tuple(self.tokenizer.encode(prompt) if prompt else [self.tokenizer.end_of_text])

    def text(self, tokens: Sequence[int], context: Sequence[int] = ()) -> str:
        """Return what token ids add to a context; the ids themselves without a tokenizer."""
        if self.tokenizer is None:
            return " ".join(map(str, tokens))
        return self.tokenizer.decode_after(context, tokens)

    def spellings(self) -> list[str]:
        """Return the text of each token on its own; nothing where there is no tokenizer."""
        if self.tokenizer is None:
            return []
        return [self.tokenizer.decode([token]) for token in range(self.tokenizer.V)]

    def controlled(
        self,
        control: Control | Sequence[Control] | None,
        lam: float | Sequence[float] | None,
        reduction: Any,
        decoding: DecodeConfig,
    ) -> Denoiser:
        """Return the denoiser, nudged by the guides if there are any, each with its own weight."""
        if isinstance(control, str) or not isinstance(control, Sequence):
            control = [] if control is None else [control]
        choose("reduction", reduction, ("sum", "mean"))
        guides = [self.guide(one) for one in control]
        refuse_contradictions(guides)
        own = [suggested_lam(guide, decoding.gradient) for guide in guides]
        given = [lam] * len(own) if isinstance(lam, float | int) else lam
        weights = own if given is None else list(given)
        if len(weights) != len(guides):
            raise ValueError(
                f"{len(weights)} values of lam for {len(guides)} guides; give one each"
            )
        for weight in weights:
            check_lam(weight)
        if not guides:
            return self.denoiser
        terms = [(self.fit(guide), weight) for guide, weight in zip(guides, weights, strict=True)]
        sees_all = all(getattr(guide, "sees", "context") == "context" for guide in guides)
        return guided(
            self.denoiser,
            weighted(*terms),
            lam=1.0,
            reduction=reduction,
            gradient=decoding.gradient,
            threshold=decoding.threshold,
            band=decoding.band,
            has_windows=sees_all,
        )

    def guide(self, control: Control) -> ClassifierGuide | LogProb:
        """Return the guide that a string names, where the model is; others as they are."""
        if not isinstance(control, str):
            if not isinstance(control, ClassifierGuide) and not callable(control):
                raise ValueError(
                    f"control={control!r} is no guide; give sentiment=positive, say, or a function"
                )
            return control
        return load_guide(control, device=str(self.denoiser.device))

    def fit(self, control: Control) -> LogProb:
        """Return a guide's log_prob for this model's vocabulary."""
        guide = self.guide(control)
        if not isinstance(guide, ClassifierGuide):
            return guide
        V, tokenizer = self.denoiser.V, self.tokenizer
        if tokenizer is None:
            return guide.fit(V=V)
        return guide.fit(
            V=V, token_strings=tokenizer.token_strings(), end_of_text=tokenizer.end_of_text
        )

    def steps(
        self, rows: Sequence[Row], decoding: DecodeConfig, denoiser: Denoiser
    ) -> Iterator[Step]:
        """Yield the sampler's steps for rows whose contexts are equally long."""
        device = denoiser.device
        context = torch.tensor([row.context for row in rows], dtype=torch.long, device=device)
        seeds = torch.tensor([row.noise_seed for row in rows], device=device)
        end = self.tokenizer.end_of_text if decoding.stop_at_end and self.tokenizer else None
        strategy = strategy_of(decoding, self.denoiser)
        if decoding.never_end and not decoding.stop_at_end and self.tokenizer:
            strategy = replace(strategy, suppress=(self.tokenizer.end_of_text,))
        if placements := [row.placement for row in rows if row.placement is not None]:
            denoiser = constrained(denoiser, placements, strategy.suppress)
            strategy = replace(strategy, suppress=())  # else a legal token could be lost to one
            if decoding.returns == "w_0":
                strategy = replace(strategy, project=denoiser.legal_projection(strategy.project))
        yield from generate(
            denoiser,
            context.reshape(len(rows), -1),
            strategy,
            blocks=rows[0].blocks(decoding),
            noise=RowNoise(seeds),
            end_of_text=end,
        )

    def finish(self, row: Row, tokens: list[int], decoding: DecodeConfig, calls: int) -> Generation:
        """Return a row's text, cut where that is asked for."""
        tokens = self.cut(row, tokens, decoding)
        text = self.text(tokens, row.context)
        return Generation(row.prompt, text, tokens, row.seed, row.sample, calls)

    def cut(self, row: Row, tokens: list[int], decoding: DecodeConfig) -> list[int]:
        """Return the tokens before the end-of-text token; of a whole text, its whole sentences."""
        is_whole = len(tokens) == sum(row.blocks(decoding))
        if decoding.stop_at_end and self.tokenizer and self.tokenizer.end_of_text in tokens:
            tokens, is_whole = tokens[: tokens.index(self.tokenizer.end_of_text)], True
        sentences = row.placement.constraint.automaton.sentences if row.placement else None
        return tokens[: sentences.cut(tokens)] if sentences and is_whole else tokens


def token_ids(prompt: Any) -> tuple[int, ...]:
    """Return a prompt that is not a string as whole numbers."""
    try:
        return tuple(map(operator.index, prompt))
    except TypeError:
        raise ValueError(
            f"prompt {prompt!r} is of the wrong type; a prompt is a string or a list of token ids"
        ) from None


def drain(steps: Iterator[Step]) -> tuple[Tensor, list[int]]:
    """Return the tokens of all blocks, and how many steps each block took."""
    blocks: list[Tensor] = []
    calls: list[int] = []
    for step in steps:
        if len(calls) == step.block:
            calls.append(0)
        calls[-1] += 1
        if step.is_last:
            blocks.append(step.tokens)
    return torch.cat(blocks, 1), calls
