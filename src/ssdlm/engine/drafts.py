"""A text on its way, for those who watch: drafts, and events that tell what changed.

    schedule.Job -> [drafts] -> plain, command line, server

An event is a dict for JSON. Those of a text, one after another, rebuild every draft of it:

    draft  what changed: a position's token, noise level, confidence, candidates
    block  a block is decided
    done   the text, as `Generation` has it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ssdlm.diffusion.sampler import Step
from ssdlm.engine.controls import Controls
from ssdlm.engine.ending import end, ends_of, num_certain, text_of, whole_text
from ssdlm.engine.requests import Candidate, Draft, Request
from ssdlm.engine.schedule import Job
from ssdlm.ops.nucleus import nucleus_probs
from ssdlm.shapes import Tensor
from ssdlm.tokenizer import HALF, Tokenizer
from ssdlm.values import WHOLE, WORDS, About, check

CANDIDATES = About(WHOLE, "", "", low=0, high=100, remedy="use 0 to 100")
GUIDES = About(WORDS, "", "")
"""What is known of the arguments `candidates` and `guides`."""


class Feed:
    """Hands a request's streamer the tokens that are decided and sure to stay, each once."""

    def __init__(self, tokenizer: Tokenizer | None, request: Request) -> None:
        self.tokenizer, self.request = tokenizer, request
        self.streamer = request.options.streamer
        self.count = 0

    def take(self, job: Job) -> None:
        """Look at a text that has got on."""
        if self.streamer is None:
            return  # without looking at the tokens: a GPU would be waited for at every step
        decided = job.decided()
        count = num_certain(self.tokenizer, self.request, decided)
        if count > self.count:
            self.streamer.put(torch.tensor(decided[self.count : count]))
            self.count = count

    def end(self) -> None:
        """Tell the streamer that there is no more."""
        if self.streamer is not None:
            self.streamer.end()


class Watcher:
    """Makes a Draft of every step of one text."""

    def __init__(
        self,
        controls: Controls,
        request: Request,
        *,
        candidates: int = 0,
        guides: str | Sequence[str] = (),
    ) -> None:
        if (count := controls.num_particles(request.options)) > 1:
            raise ValueError(
                f"particles={count} are weighed against each other, and there is no one draft to "
                "show; write the text without watching it"
            )
        self.tokenizer, self.request = controls.tokenizer, request
        self.device = controls.denoiser.device
        self.num_candidates = check("candidates", candidates, CANDIDATES)
        mode = request.options.mode
        if self.num_candidates and mode != "diffusion":
            raise ValueError(
                f"candidates={candidates}: mode={mode} decides a token at a time and leaves none "
                "open; use mode=diffusion"
            )
        self.num_candidates = min(self.num_candidates, controls.denoiser.V)
        self.texts: dict[int, str] = {}
        """Of tokens that were candidates."""
        self.guides = {
            name.partition("=")[0]: controls.reader(name)
            for name in check("guides", guides, GUIDES)
        }

    @property
    def reads_logits(self) -> bool:
        """Whether drafts tell more than tokens and how sure they are."""
        return bool(self.num_candidates or self.guides)

    def look(self, job: Job) -> Draft:
        """Return the draft of a job that has had a turn of the plain loop."""
        step, row = job.step, job.row
        assert step is not None
        new = step.tokens[row].tolist()
        settled = job.tokens[: len(job.tokens) - len(new)] if step.is_last else job.tokens
        # A block that was left early is decided, whatever level it had come to.
        noise = [0.0] * len(new) if step.is_last else step.progress.tolist()
        logits, trust = step.logits[row].float(), step.confidence
        if trust is None:
            shown, options = step.tokens[row, step.window].unsqueeze(-1), self.request.options
            # As it is drawn; elsewhere the logits are cut already.
            is_cut_here = options.nucleus == "logits" and options.projection != "mean"
            cut = (options.top_p, options.top_k, options.min_p) if is_cut_here else (1.0, 0, 0.0)
            probs = nucleus_probs(logits.unsqueeze(0), *cut)
            trust = probs[0].gather(-1, shown)[:, 0].tolist()
        return Draft(
            end(self.tokenizer, self.request, settled + new).text,
            text_of(self.tokenizer, settled, self.request.context),
            step.block,
            step.t,
            step,
            tokens=tuple(new),
            start=len(settled),
            passes=sum(job.passes),
            noise=tuple(noise),
            confidence=tuple(trust),
            candidates=self.likeliest(logits) if self.num_candidates else (),
            guides=self.opinions(settled + new, noise, step, row) if self.guides else {},
        )

    def text_of(self, token: int) -> str:
        """Return the text of a token alone, found once."""
        if token not in self.texts:
            self.texts[token] = text_of(self.tokenizer, [token])
        return self.texts[token]

    def likeliest(self, logits: Tensor) -> tuple[tuple[Candidate, ...], ...]:
        """Return the likeliest tokens of each position, by logits (b, V)."""
        found = logits.softmax(-1).topk(self.num_candidates)
        rows = zip(found.indices.tolist(), found.values.tolist(), strict=True)
        return tuple(
            tuple(
                Candidate(token, self.text_of(token), probability)
                for token, probability in zip(tokens, probabilities, strict=True)
                if probability > 0
            )
            for tokens, probabilities in rows
        )

    def opinions(
        self, tokens: list[int], noise: list[float], step: Step, row: int
    ) -> dict[str, dict[str, float]]:
        """Return each guide's probabilities of its labels.

        A guide reads what is decided as tokens, and what is open as the network's probabilities,
        as it does when it steers; what is still noise it does not read.
        """
        start = len(tokens) - len(noise)
        num_decided = next((n for n, level in enumerate(noise) if level > 0), len(noise))
        num_read = next((n for n, level in enumerate(noise) if level == 1), len(noise))
        first = step.window.start
        logits = step.logits[row : row + 1, max(0, num_decided - first) : max(0, num_read - first)]
        logits = logits.to(self.device)
        ids = [*self.request.context, *tokens[: start + num_decided]]
        read = torch.tensor([ids], dtype=torch.long, device=self.device)
        return {name: guide.label_probs(read, logits) for name, guide in self.guides.items()}


class DraftEncoder:
    """Turns the steps of one text into events; each tells only what changed since the one before.

    A position's text is what its token adds in its place. All of them, joined, are the draft's
    text: a token that completes no character has "", and the next one carries it.
    """

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.tokenizer, self.request = watcher.tokenizer, watcher.request
        self.num_blocks = len(self.request.blocks())
        self.tokens: list[int] = []
        """The text as it was told, with what is open and what is noise."""
        self.ends: list[int] = []
        """Where the text of each position ends, in characters."""
        self.told: list[dict[str, Any]] = []
        """What was told of each position."""
        self.num_decided = 0
        self.num_characters = 0
        """Of the blocks that were told."""

    def take(self, job: Job) -> list[dict[str, Any]]:
        """Return the events of a job that has had a turn of the plain loop."""
        return self.encode(self.watcher.look(job))

    def encode(self, draft: Draft) -> list[dict[str, Any]]:
        """Return the events of the text's next draft."""
        start, stop = draft.start, draft.start + len(draft.tokens)
        # A block's last step does not tell of the next one's positions; open ones stay as they are.
        tokens = [*self.tokens[:start], *draft.tokens, *self.tokens[stop:]]
        pieces = self.update(tokens)
        pairs = zip(tokens, pieces, strict=True)
        states: list[dict[str, Any]] = [{"token": token, "text": text} for token, text in pairs]
        for state, level in zip(states[start:stop], draft.noise, strict=True):
            state["noise"] = max(round(level, 4), 1e-4) if level else 0.0
        first = start + draft.step.window.start
        for index, confidence in enumerate(draft.confidence):
            if first + index >= self.num_decided:  # of others, what was told stays true
                states[first + index]["confidence"] = round(confidence, 3)
                if draft.candidates:
                    states[first + index]["candidates"] = listed(draft.candidates[index])
        event: dict[str, Any] = {
            "event": "draft",
            "block": draft.block,
            "num_blocks": self.num_blocks,
            "t": draft.t,
            "passes": draft.passes,
            "decided": draft.decided,
            "length": len(tokens),
            "changed": self.changed(states),
        }
        if self.watcher.guides:
            event["guides"] = {
                name: {label: round(probability, 3) for label, probability in labels.items()}
                for name, labels in draft.guides.items()
            }
        self.num_decided = draft.decided
        return [event, self.block(draft)] if draft.step.is_last else [event]

    def update(self, tokens: list[int]) -> list[str]:
        """Take in the text's tokens and return the text of each."""
        pairs = zip(tokens, self.tokens, strict=False)
        same = next((n for n, (new, old) in enumerate(pairs) if new != old), len(self.tokens))
        if len(tokens) != len(self.tokens):  # the last position has all that is left
            same = max(0, min(same, len(self.tokens) - 1))
        whole = whole_text(self.tokenizer, self.request, tokens)
        ends = ends_of(self.tokenizer, self.request.context, tokens, whole, self.ends[:same])
        ends[-1:] = [len(whole)] if tokens else []
        self.tokens, self.ends = tokens, ends
        return [whole[a:b] for a, b in zip([0, *ends], ends, strict=False)]

    def changed(self, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return what of the positions' states was not told before, and remember it."""
        changes = []
        for position, state in enumerate(states):
            if position == len(self.told):
                self.told.append({})
            told = self.told[position]
            new = {key: value for key, value in state.items() if told.get(key) != value}
            if "token" in new or "text" in new:
                new = {"token": state["token"], "text": state["text"]} | new
            if new:
                told.update(new)
                changes.append({"position": position} | new)
        return changes

    def block(self, draft: Draft) -> dict[str, Any]:
        """Return the event of a block that is decided, cut where the text ends."""
        ended = end(self.tokenizer, self.request, self.tokens[: draft.start + len(draft.tokens)])
        text = ended.text if ended.is_over else ended.text.rstrip(HALF)
        added, self.num_characters = text[self.num_characters :], len(text)
        return {
            "event": "block",
            "block": draft.block,
            "start": draft.start,
            "tokens": ended.tokens[draft.start :],
            "text": added,
        }


def listed(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Return candidates as they are in an event."""
    return [one._asdict() | {"probability": round(one.probability, 4)} for one in candidates]
