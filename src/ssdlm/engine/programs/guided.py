"""Windows steered by guides, on any path.  window -> [guided] -> engine.runners

A classifier of a known kind is asked within the graph. Any other guide, as a function of a user, is
asked for its gradient between the halves of a pass, and the graph does the rest. The plain twin is
`Window.ask`, which does all of it between the halves, as a CPU does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ssdlm.denoiser.slots import Network
from ssdlm.engine.batch import PLAIN, Entry, Traits
from ssdlm.engine.controls import Controls
from ssdlm.engine.path import Path
from ssdlm.engine.programs.window import Window
from ssdlm.guidance.gradient import Asked, InSimplex, side_by_side
from ssdlm.guidance.growing import GrowingGuide
from ssdlm.ops.nudges import SMALLEST, add_nudge, can_nudge
from ssdlm.options import GenerateOptions
from ssdlm.shapes import Tensor

HAS_SHORT_CUTS = True
"""Whether guides of one layer keep what they have read, and a GPU has kernels for nudges."""


@contextmanager
def rounded_products(is_rounded: bool) -> Iterator[None]:
    """Let a GPU round what it multiplies to ten bits, as it does beside a network of eight."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = before or is_rounded
    try:
        yield
    finally:
        matmul.allow_tf32 = before


class GuidedWindow(Window):
    """Windows whose guides read each text as far as it has come, and its open positions.

    All texts of a batch have the same guides with the same weights.
    """

    is_dense = True

    def __init__(
        self,
        denoiser: Network,
        path: Path,
        controls: Controls,
        options: GenerateOptions,
        traits: Traits = PLAIN,
        **sizes: Any,
    ) -> None:
        super().__init__(denoiser, path, traits, **sizes)
        capacity, V = sizes["capacity"], denoiser.V
        room = None if traits.has_guides else controls.room(options)
        self.S = capacity if room is None else min(capacity, room - self.W)
        self.ids = self.whole(self.S)
        """What the guides read: all that is decided, and behind it a token that was there."""
        self.counts, self.opens = self.whole(), self.whole()
        """Tokens that are decided, and positions behind them that guides read."""
        if traits.has_guides:
            self.steering = controls.steer_asked(options, (self.num_slots, self.W, V))
        else:
            opens = None if self.slides else self.opens
            grows = HAS_SHORT_CUTS and self.pace == 1
            self.steering = controls.steer_padded(options, self.counts, opens, grows=grows)
        # A guide that reads a block as it is reads all of it, and so it is beside words and pins.
        has_windows = self.steering.has_windows and self.places is None
        windows = path.windows if has_windows else (slice(None),)
        self.windows = [slice(*one.indices(self.W)) for one in windows]
        table = torch.tensor([(one.start, one.stop) for one in self.windows], device=self.device)
        self.starts, self.ends = table.unbind(1)
        self.terms = self.steering.terms()
        self.growing = [term for term, _, _ in self.terms if isinstance(term, GrowingGuide)]
        self.asked = [term for term, _, _ in self.terms if isinstance(term, Asked)]
        self.is_fused = HAS_SHORT_CUTS and self.is_known(V)
        self.hears_all = self.slides and self.steering.band == (0.0, 1.0)
        """Whether guides are heard at all positions of each pass."""
        self.present = torch.zeros(self.num_slots, V, dtype=torch.bool, device=self.device)
        """Which tokens are in a text, for the kernel; those of `ids`, but for the last."""
        self.nothing = torch.zeros(V, device=self.device)
        """What a draw adds: the prior is in what the guides return."""

    def is_known(self, V: int) -> bool:
        """Tell whether one operation adds what a guide says to V logits."""
        is_known = all(isinstance(term, (InSimplex, Asked)) for term, _, _ in self.terms)
        return is_known and self.steering.gradient == "words" and can_nudge(self.device, V)

    def join(
        self, entries: Sequence[Entry], slots: Sequence[int], sources: Sequence[int | None] = ()
    ) -> Tensor:
        at = super().join(entries, slots, sources)
        padded = [one.context + one.context[:1] * (self.S - len(one.context)) for one in entries]
        ids = torch.tensor(padded, device=self.device)
        self.ids[at] = ids
        self.present[at] = torch.zeros_like(self.present[at]).scatter(1, ids, True)
        if self.growing:
            lengths = [len(one.context) - 1 for one in entries]
            counts, longest = torch.tensor(lengths, device=self.device), max(lengths)
            for guide in self.growing:
                guide.join(ids[:, :longest], counts, at)
        return at

    def pick(self) -> None:
        with rounded_products(self.denoiser.dtype != torch.float32):
            super().pick()

    def count_slots(self) -> None:
        super().count_slots()
        self.is_split = self.is_split or bool(self.asked)

    def say(self) -> None:
        super().say()
        if self.asked:
            _, self.view = self.look()

    def look(self) -> tuple[Tensor, Tensor]:
        """Return logits without the evidence, and those that guides read, from the left."""
        V = self.denoiser.V  # guides know nothing of more
        own = self.logits[..., :V] + self.prior[:V]
        whole = own if self.ell is None else own + self.ell
        torch.add(self.lengths, 1, out=self.counts)  # the last token is being read
        if self.slides:
            return own, whole
        start, end = self.bounds()
        place = torch.arange(self.W, device=self.device)
        known = torch.where(place < start, self.tokens, self.ids[:, :1])
        self.ids.scatter_(1, (self.counts.unsqueeze(1) + place).clamp(max=self.S - 1), known)
        self.present.scatter_(1, known, True)
        self.counts.add_(start[:, 0])
        self.opens.copy_((end - start)[:, 0])
        return own, moved(whole, place + start)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return where what guides read of each block begins and ends, (N, 1) each."""
        number = self.passes.clamp(max=len(self.windows) - 1).unsqueeze(1)
        return self.starts[number], self.ends[number]

    def ask(self) -> None:
        """Ask guides that no graph holds for their gradients, text by text."""
        super().ask()
        for slot, entry in self.entries.items() if self.asked else ():
            window = self.windows[min(self.passes_of(slot), len(self.windows) - 1)]
            num, count = window.stop - window.start, len(entry.context) + self.num_decided(slot)
            context, logits = self.ids[slot, : count + window.start], self.view[slot, :num]
            for guide in self.asked:
                own = context.unsqueeze(0), logits.unsqueeze(0)
                guide.gradient[slot, :num] = self.steering.rise(guide.log_prob, *own)[0]

    def steered(self) -> tuple[Tensor, Tensor]:
        own, view = self.look()
        # Of all rows at once: each is steered by itself, and at every level.
        base = own if self.hears_all else torch.zeros_like(own)
        if self.is_fused:
            nudged = self.nudged(base, view)
        else:
            for guide in self.growing:
                guide.read(self.last, self.active)
            nudged = base + self.steering.lam * self.steering.nudge(self.ids, view)
        return nudged if self.hears_all else own + self.heard(nudged), self.nothing

    def heard(self, nudge: Tensor) -> Tensor:
        """Return nudges at the positions that they are for, 0 elsewhere and out of the band."""
        (start, end), place = self.bounds(), torch.arange(self.W, device=self.device)
        level, (low, high) = self.levels[self.path.row(self.passes)], self.steering.band
        is_heard = (place >= start) & (place < end) & (level >= low) & (level <= high)
        return moved(nudge, place - start).where(is_heard.unsqueeze(-1), 0.0)

    def nudged(self, base: Tensor, whole: Tensor) -> Tensor:
        """Return base + lam * nudge at the whole logits, by a launch for each guide."""
        works = [partial(self.climb, term, whole) for term, _, _ in self.terms]
        gradients = side_by_side(works, self.device)
        for gradient, (_, weight, most) in zip(gradients, self.terms, strict=True):
            known = self.present, self.last, self.active, most
            how = {"threshold": self.steering.threshold, "plausible": self.steering.plausible}
            scale = self.steering.lam * weight
            base = add_nudge(base, whole, gradient, *known, scale=scale, **how)
        return base

    def climb(self, guide: Any, whole: Tensor) -> Tensor:
        """Return a guide's gradient in the simplex, after it has read what was decided last."""
        if isinstance(guide, Asked):
            return guide.gradient / whole.softmax(-1).clamp(min=SMALLEST)
        if isinstance(guide, GrowingGuide):
            return guide.read_and_climb(self.last, self.active, whole)
        return guide.simplex_gradient(self.ids, whole)

    def write(self, tokens: Tensor, gets_one: Tensor) -> None:
        if not self.is_fused or len(self.growing) < len(self.terms):
            places = self.counts.clamp(max=self.S - 1).unsqueeze(1)
            self.ids.scatter_(1, places, tokens)
        super().write(tokens, gets_one)

    def end_blocks(self, slots: list[int]) -> None:
        for slot in slots:
            count = len(self.entries[slot].context) + self.num_decided(slot)
            self.ids[slot, count - self.W : count] = self.tokens[slot]
            self.present[slot, self.tokens[slot]] = True
        super().end_blocks(slots)


def moved(logits: Tensor, places: Tensor) -> Tensor:
    """Return the logits (N, W, V) at places (N, W); beyond the ends, those at the ends."""
    places = places.clamp(0, logits.shape[1] - 1).unsqueeze(-1)
    return logits.gather(1, places.expand_as(logits))
