"""Requests in, texts out: the plain loop, one batch after another.  requests -> [plain] -> api

All bad input is refused in `prepare`, before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from itertools import accumulate, islice
from typing import Any

import torch

from ssdlm.constraints.constrained import constrained
from ssdlm.constraints.grammatical import grammatical, weighed
from ssdlm.constraints.placement import Placement
from ssdlm.constraints.words import ConstraintCompiler, Wanted
from ssdlm.denoiser import Denoiser
from ssdlm.denoiser.drafter import Drafter
from ssdlm.diffusion.bias import biased
from ssdlm.diffusion.grid import Sliding
from ssdlm.diffusion.likelihood import mean_nll, texts_nll
from ssdlm.diffusion.noise import RowNoise
from ssdlm.diffusion.sampler import Step, Strategy, generate
from ssdlm.diffusion.sliding import slide
from ssdlm.engine.chains import Chains, check_context, check_room, check_stream
from ssdlm.engine.chat import ChatText, as_answer
from ssdlm.engine.chooser import Answered, Chooser
from ssdlm.engine.choosing import Candidate, by_length, join_nll, kept
from ssdlm.engine.controls import Controls
from ssdlm.engine.describing import behind_description, check_description
from ssdlm.engine.drafts import DraftEncoder, Feed, Watcher
from ssdlm.engine.ending import end, end_token, text_of, unwritten
from ssdlm.engine.particles import Swarms, behind, chunks_of, piece_of
from ssdlm.engine.requests import (
    Draft,
    Generation,
    Opened,
    Request,
    Requests,
    WatchedGeneration,
    Written,
    token_ids,
)
from ssdlm.engine.runners import CPU_SLOTS, Key, Runners
from ssdlm.engine.schedule import Batch, Job, Schedule, Worker, refuse_unwanted
from ssdlm.engine.showing import Piece
from ssdlm.engine.strategy import bias_of, for_gap, is_adapted, strategy_of, strategy_of_text
from ssdlm.engine.targets import Targets, check_targets
from ssdlm.engine.wanted import Compile, placed, wanted_of
from ssdlm.engine.worker import BatchWorker
from ssdlm.guidance.described import described
from ssdlm.needs import refuse_idle
from ssdlm.options import GenerateOptions
from ssdlm.storage.arrays import user_cache
from ssdlm.tokenizer import Tokenizer, is_utf8
from ssdlm.values import quote

Prompt = str | Sequence[int]
MOST_RATED = 16
"""Texts that are rated in one pass: each token of theirs has V logits."""
MOST_WAITING = 4096
"""Requests that are looked at together for those that may share a pass; more wait unseen."""


class Engine:
    """Writes texts with one model. A text depends on its own request alone, not on the others."""

    def __init__(
        self,
        denoiser: Denoiser,
        tokenizer: Tokenizer | None,
        *,
        is_deterministic: bool = False,
        find_drafter: Callable[[], Drafter | None] = lambda: None,
    ) -> None:
        self.denoiser = denoiser
        self.tokenizer = tokenizer
        self.find_drafter = find_drafter
        self.is_deterministic = is_deterministic
        self.controls = Controls(denoiser, tokenizer, is_deterministic=is_deterministic)
        self.chains = Chains(denoiser, tokenizer)
        self.runners = Runners(self)

    @cached_property
    def drafter(self) -> Drafter | None:
        """What guesses for mode=speculative; found when that is first asked for."""
        return self.find_drafter()

    @property
    def device(self) -> torch.device:
        return self.denoiser.device

    def prepare(
        self,
        prompts: Sequence[Prompt],
        options: Sequence[GenerateOptions],
        compile: Compile | None = None,
    ) -> Requests:
        """Return a request for each sample of each prompt, or raise on what cannot be written.

        `compile` finds placements for constraints elsewhere, for one to whom it takes too long.
        """
        if not prompts:
            raise ValueError("there are no prompts; give at least one, which may be empty")
        for one in {id(one): one for one in options}.values():
            self.check(one)
        firsts: list[list[Request]] = []
        number = 0
        for prompt, own in zip(prompts, options, strict=True):
            context, own = self.context(prompt), for_gap(own, self.denoiser)
            if isinstance(prompt, ChatText) and self.tokenizer:
                own = as_answer(own, self.tokenizer)
            shown = str(prompt) if isinstance(prompt, str) else text_of(self.tokenizer, context)
            request = Request(
                shown,
                context,
                own,
                behind_description(prompt, context, own, self.tokenizer),
                number=number,
                num_candidates=own.num_candidates,
                opening=prompt.opening if isinstance(prompt, Opened) else None,
                reads_block=self.controls.reads_block(own),
                is_watched=own.streamer is not None,
            )
            check_context(request, self.denoiser)
            firsts.append(by_length(request))
            number += own.num_samples
        wanted = [
            wanted_of(one, self.denoiser, self.tokenizer) for group in firsts for one in group
        ]
        firsts = placed(firsts, wanted, compile or self.compile)
        for request in (one for group in firsts for one in group):
            check_room(request, self.denoiser)
        requests = Requests(firsts, Targets().aimed)
        if requests[0].options.streamer is not None and len(requests) > 1:
            raise ValueError(f"streamer takes one text, and {len(requests)} are asked for")
        return requests

    def check(self, options: GenerateOptions) -> None:
        """Raise on options that this model cannot follow, or that have no effect here."""
        refuse_idle(options, options.given)
        if options.best_of > 1:
            given = f"best_of={options.best_of}"
            check_stream(self.denoiser, given, "rates the candidates; use best_of=1")
        if options.gap:
            check_stream(self.denoiser, f"gap={options.gap}", "rates the lengths; use length")
        if options.stop and self.tokenizer is None:
            raise ValueError(
                f"stop={options.stop[0]!r} needs a tokenizer, and this model has none; put "
                "tokenizer.json beside its weights"
            )
        V = self.denoiser.V
        if unknown := [token for token, _ in options.logit_bias if token >= V]:
            raise ValueError(
                f"logit_bias names token {unknown[0]}, and the model has 0 to {V - 1}; use these"
            )
        if options.mode != "diffusion":
            mode = f"mode={options.mode}"
            check_stream(self.denoiser, mode, "predicts the next token; use mode=diffusion")
            return
        check_description(options, self.denoiser, self.tokenizer)
        strategy_of(options, self.denoiser)
        check_targets(options)
        self.controls.apply(options)
        refuse_idle(options, options.given, self.controls.steering(options))
        if self.controls.num_particles(options) > 1:
            self.controls.check_scorers(options)

    def context(self, prompt: Prompt, called: str = "prompt") -> tuple[int, ...]:
        """Return a prompt's ids; an empty text begins as the tokenizer says."""
        if not isinstance(prompt, str):
            ids = token_ids(prompt, called)
            if ids and not 0 <= min(ids) <= max(ids) < self.denoiser.V:
                raise ValueError(
                    f"{called} ids {quote(prompt)} reach outside 0..{self.denoiser.V - 1}"
                )
            return ids
        if self.tokenizer is None:
            raise ValueError(
                f"this checkpoint has no tokenizer; give {called}s as lists of ids, or put "
                "tokenizer.json beside its weights"
            )
        if not is_utf8(prompt):
            raise ValueError(f"{called} {quote(prompt)} is not UTF-8; save or type it as UTF-8")
        return tuple(self.tokenizer.encode_prompt(prompt))

    def compile(self, wanted: Sequence[Wanted]) -> list[Placement]:
        """Return a legal placement of what each text must contain, or raise where there is none."""
        return [self.compiler.compile(one) for one in wanted]

    @cached_property
    def compiler(self) -> ConstraintCompiler:
        """What finds placements; it keeps the automata that were asked for last."""
        assert self.tokenizer is not None  # else nothing is wanted
        V, max_len, cache = self.denoiser.V, self.denoiser.max_len, user_cache("grammars")
        return ConstraintCompiler(self.tokenizer, V=V, max_len=max_len, cache=cache)

    def write(self, requests: Requests) -> Iterator[tuple[int, Generation]]:
        """Yield (number, text) as texts get done; where several compete, the likeliest."""
        for request, text in kept(self.rate, self.candidates(requests)):
            yield request.number, text
        self.controls.warn_of_idle()

    def rate(self, texts: Sequence[Candidate]) -> list[float]:
        """Return what texts of one prompt are worth: the lower the better, by the context stream.

        It is the mean -log p of their tokens, or of an adapter how well they fill a gap.
        """
        rates_joins = is_adapted(self.denoiser)
        found: list[float] = []
        for start in range(0, len(texts), MOST_RATED):
            some = texts[start : start + MOST_RATED]
            tokens = [text.tokens for _, text in some]
            nll = texts_nll(self.chains.denoiser, some[0][0].context, tokens)
            for (request, text), own in zip(some, nll, strict=True):
                if rates_joins and request.options.suffix and self.tokenizer is not None:
                    found.append(join_nll(self.tokenizer, request, text, own))
                else:
                    found.append(mean_nll(own))
        return found

    def candidates(self, requests: Requests) -> Iterator[tuple[Request, Generation]]:
        """Yield every text that is written, as it gets done."""
        at_once = self.rows_at_once(requests[0])
        schedule, source = self.schedule(most_jobs=at_once), iter(requests)
        feed = Feed(self.tokenizer, requests[0])  # a streamer takes one text, so it is alone
        while True:
            refuse_unwanted()
            for request in islice(source, MOST_WAITING - schedule.num_waiting):
                schedule.submit(request)
            if schedule.num_waiting + schedule.num_jobs == 0:
                break
            for job in schedule.turn():
                feed.take(job)
                if (text := self.finish(job)) is not None:
                    yield job.request, text
        schedule.dismiss()
        feed.end()

    def finish(self, job: Job) -> Generation | None:
        """Return the text of a job that has had a turn, if it is whole; then its place is free.

        Raise a ValueError where it has none.
        """
        if job.failure is not None:
            raise job.failure
        if job.step is not None and not job.step.is_last:
            return None
        request = job.request
        if job.step is None and not self.may_have_ended(job):
            return None
        ended = end(self.tokenizer, request, job.tokens)
        job.is_over = job.is_over or ended.is_over  # it may have been cancelled
        if not ended.is_over:
            return None
        return Generation(
            request.prompt,
            ended.text,
            ended.tokens,
            request.options.seed,
            request.sample,
            calls=max(job.passes),
            passes_per_token=sum(job.passes) / max(1, len(ended.tokens)),
            finish_reason="length" if len(ended.tokens) == sum(request.blocks()) else "stop",
            written=self.written(request, job.kind),
        )

    def written(self, request: Request, kind: Hashable = None) -> Written:
        """Return how a text is written, by nothing but its request, the model and the device.

        Where `kind_of` is known, and tells the program, this is quick.
        """
        if isinstance(kind, Key):
            return self.runners.written(request, kind)
        if self.num_particles(request) == 1:
            return self.runners.written(request, self.runners.key_of(request))
        chunks = chunks_of(request)
        # Later pieces have longer contexts, which guides may not read; only the first may be empty.
        done = (0,) * sum(chunks[:-1])
        first, last = (piece_of(request, chunks, round) for round in (0, len(chunks) - 1))
        found = map(self.written, (first, behind(last, done)))
        return min(found, key=lambda one: (one.program != "reference", one.is_captured))

    def may_have_ended(self, job: Job) -> bool:
        """Tell whether a text has come to the end of a block, or to an end-of-text token.

        A text is looked at once a block: to do so after every token would take longer than a pass.
        """
        seen, job.num_seen = job.num_seen, len(job.tokens)
        if any(seen < end <= job.num_seen for end in accumulate(job.request.blocks())):
            return True
        if self.tokenizer is None or end_token(job.request.options, self.tokenizer) is None:
            return False
        return not set(self.tokenizer.ends).isdisjoint(job.tokens[seen:])

    def schedule(self, *, most_jobs: int, grows: bool = False) -> Schedule:
        """Return the turns of requests that are submitted to it, so many texts at a time.

        `grows` is for a server, which cannot know how many are to come.
        """
        grows = grows and not self.is_deterministic  # whose batches are all of one size
        return Schedule(self.kind_of, self.employ, most_jobs=most_jobs, grows=grows)

    def kind_of(self, request: Request) -> Hashable:
        """Return what requests that go through the network together have in common."""
        if (count := self.num_particles(request)) > 1:
            return "particles", count, request.options.batch_size
        return self.runners.key_of(request) or request.batch_key()

    def rows_at_once(self, request: Request) -> int:
        """Return how many texts like this one are written side by side."""
        if self.device.type != "cpu":
            return request.options.batch_size
        # Others would only take turns, and texts that get done one by one can be saved so.
        has_program = self.runners.key_of(request) is not None
        return min(request.options.batch_size, CPU_SLOTS) if has_program else 1

    def num_particles(self, request: Request) -> int:
        """Return how many versions of a text are weighed against each other; 1 for none."""
        return 1 if request.branch else self.controls.num_particles(request.options)

    def employ(self, jobs: Sequence[Job]) -> Worker:
        """Return a worker for jobs of one kind."""
        first = jobs[0].request
        if (count := self.num_particles(first)) > 1:
            places = max(1, first.options.batch_size // count)
            inner = self.schedule(most_jobs=self.rows_at_once(first))
            return Swarms(places, count, inner, self.finish, self.controls)
        if (key := self.runners.key_of(first)) is not None:
            is_cpu = self.device.type == "cpu"  # where slots cost nothing before they are used
            # A drafter pays for so few texts there that it matters how many there are.
            is_cpu &= key.program != "drafted"
            count = self.rows_at_once(first) if is_cpu else len(jobs)
            return BatchWorker(self.runners, key, first, count)
        return Batch(self.batch_size(first.options), self.steps)

    def batch_size(self, options: GenerateOptions) -> int:
        """Return how many requests go through the network together."""
        is_alone = self.device.type == "cpu" or self.is_deterministic
        return 1 if is_alone and options.reduction == "sum" else options.batch_size

    def stream(
        self,
        request: Request,
        *,
        candidates: int = 0,
        guides: str | Sequence[str] = (),
        states: bool = False,
    ) -> Iterator[Draft]:
        """Yield every step of one text, so that one can watch it settle.

        `candidates` and `guides` are what a draft tells beside the text: the likeliest tokens of
        each open position, so many, and what guides of these names make of it. With `states` its
        step has logits and states too.
        """
        watcher = Watcher(self.controls, request, candidates=candidates, guides=guides)
        keeps_states = states or watcher.reads_logits
        return (watcher.look(job) for job, _ in self.follow(request, keeps_states=keeps_states))

    def events(
        self, request: Request, *, candidates: int = 0, guides: str | Sequence[str] = ()
    ) -> Iterator[dict[str, Any]]:
        """Yield the events of one text: what each draft changed, its blocks, and the text."""
        watcher = Watcher(self.controls, request, candidates=candidates, guides=guides)
        encoder = DraftEncoder(watcher)
        for job, text in self.follow(request, keeps_states=watcher.reads_logits):
            yield from encoder.take(job)
            if text is not None:
                yield {"event": "done", **asdict(text)}

    def keep(self, request: Request) -> WatchedGeneration:
        """Write one text and keep its steps; tokens that do not change are shared between them."""
        encoder, done = DraftEncoder(Watcher(self.controls, request)), None
        steps: list[list[Piece]] = [[]]
        for job, text in self.follow(request, keeps_states=False):
            done, event = text, encoder.take(job)[0]
            steps.append(steps[-1][: event["length"]])
            for place in (change["position"] for change in event["changed"]):
                told = encoder.told[place]
                piece = Piece(told["text"], told.get("confidence"), told.get("noise", 0.0))
                steps[-1][place : place + 1] = [piece]
        return WatchedGeneration(**vars(done), steps=steps[1:])

    def follow(
        self, request: Request, *, keeps_states: bool
    ) -> Iterator[tuple[Job, Generation | None]]:
        """Yield the job of one text after every step; with the last one, the text."""
        schedule, feed = self.schedule(most_jobs=1), Feed(self.tokenizer, request)
        job = schedule.submit(replace(request, is_watched=True, keeps_states=keeps_states))
        while not job.is_over:
            refuse_unwanted()
            schedule.turn()
            feed.take(job)
            yield job, self.finish(job)
        schedule.dismiss()
        feed.end()
        self.controls.warn_of_idle()

    def steps(self, batch: Sequence[Request]) -> Iterator[Step]:
        """Yield the reference loop's steps for requests that go together."""
        if batch[0].options.mode != "diffusion":
            return self.chains.steps(batch)
        return self.loop(*self.wrapped(self.network(batch), batch), batch)

    def network(self, batch: Sequence[Request]) -> Denoiser:
        """Return what denoises texts: the model, led by their descriptions if they have some."""
        if not batch[0].described:
            return self.denoiser
        prompts = torch.tensor([one.described for one in batch], device=self.device)
        weight = batch[0].options.control_by_weight
        return described(self.denoiser, prompts, len(batch[0].context), weight)

    def chooser(self, request: Request) -> Chooser:
        """Return the reference loop of a text that a decode batch writes."""
        inner = Answered(self.denoiser)
        denoiser, strategy = self.wrapped(inner, [request])
        return Chooser(inner, denoiser, self.loop(denoiser, strategy, [request]))

    def loop(
        self, denoiser: Denoiser, strategy: Strategy, batch: Sequence[Request]
    ) -> Iterator[Step]:
        """Yield the steps of the diffusion, by a denoiser within guides and constraints."""
        options, device, blocks = batch[0].options, self.device, batch[0].blocks()
        context = torch.tensor([one.context for one in batch], dtype=torch.long, device=device)
        context = context.reshape(len(batch), -1)
        noise = RowNoise(torch.tensor([one.noise_seed for one in batch], device=device))
        if batch[0].slides:
            path = Sliding(options.T, options.width)
            whole = [options.whole_block(number) for number in range(len(blocks))]
            steps = slide(denoiser, context, strategy, path, blocks=blocks, B=whole, noise=noise)
        else:
            steps = generate(denoiser, context, strategy, blocks=blocks, noise=noise)
        if isinstance(denoiser, grammatical) and denoiser.is_weighed:
            return weighed(steps, denoiser)
        return steps

    def wrapped(self, denoiser: Denoiser, batch: Sequence[Request]) -> tuple[Denoiser, Strategy]:
        """Return a denoiser within the guides and constraints of requests, and their strategy."""
        options = batch[0].options
        denoiser = self.controls.apply(options, denoiser)
        if bias := bias_of(options):
            start = len(batch[0].context) - batch[0].num_before
            denoiser = biased(denoiser, bias, start)
        never, last = unwritten(options, self.tokenizer), end_token(options, self.tokenizer)
        strategy = strategy_of_text(batch[0], self.denoiser)
        strategy = replace(strategy, suppress=never, end_of_text=last)
        if placements := [one.placement for one in batch if one.placement is not None]:
            is_drawn = options.returns == "w_0"
            if options.has_grammar:
                denoiser = grammatical(
                    denoiser,
                    placements,
                    ends_as_drawn=is_drawn,
                    is_weighed=bool(batch[0].branch),
                    truncate=strategy.truncate,
                )
            else:
                denoiser = constrained(denoiser, placements, strategy.suppress)
            strategy = replace(strategy, suppress=())  # else a legal token could be lost to one
            if is_drawn or options.has_grammar:
                strategy = replace(strategy, project=denoiser.legal_projection(strategy.project))
        return denoiser, strategy
