"""Chains by a drafter's guesses: checked, taken up and guessed anew in one pass.

batch, denoiser.drafter -> [drafted] -> engine.runners
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ssdlm.constraints.grammar_mask import Spot
from ssdlm.denoiser.drafter import DraftedRows, Drafter
from ssdlm.denoiser.slots import Network
from ssdlm.engine.batch import PLAIN, DecodeBatch, Entry, Text, Traits
from ssdlm.ops.counters import GUMBEL
from ssdlm.ops.draws import draw_perturbed
from ssdlm.ops.guesses import put_guesses_
from ssdlm.ops.rows import Rows
from ssdlm.ops.verify import advance_
from ssdlm.shapes import Tensor

TOKENS_PER_PASS = 2.2
"""Tokens that a pass is expected to make certain, before any has."""


class Drafted(DecodeBatch):
    """The chains of `Chain` in fewer passes: a chain of guesses each, which a pass checks.

    Every token is what `Chain` would write, whatever is guessed.
    """

    is_dense = True

    def __init__(
        self, denoiser: Network, drafter: Drafter, num_guesses: int, traits: Traits = PLAIN,
        **sizes: Any,
    ) -> None:  # fmt: skip
        super().__init__(denoiser, traits, **sizes)
        self.drafted = DraftedRows(drafter, self.slots, self.head, num_guesses)
        self.R = 1 + num_guesses
        """Rows that are checked: the newest token, and the guesses behind it."""
        self.rows = Rows.causal(self.R, self.device)
        self.guesses, self.limits = self.whole(self.R), self.whole()
        self.last = self.guesses[:, :1]  # the newest token
        self.is_single = torch.zeros(self.num_slots, 1, dtype=torch.bool, device=self.device)
        """The texts that get one token a pass: the host reads their grammars."""
        self.spots: list[Spot] = []
        """Where each row of a pass stands in the texts' grammars."""
        self.text = self.whole(sizes["capacity"] + self.R)
        self.when = torch.zeros_like(self.text)
        self.tokens_per_pass = TOKENS_PER_PASS

    def join(
        self, entries: Sequence[Entry], slots: Sequence[int], sources: Sequence[int | None] = ()
    ) -> Tensor:
        at = super().join(entries, slots, sources)
        self.guesses[at, 1:] = 0  # any guess will do, for it is checked
        self.limits[at] = torch.tensor([one.length for one in entries], device=self.device)
        if self.masks is not None:
            on_host = [[slot in self.masks.on_host] for slot in slots]
            self.is_single[at] = torch.tensor(on_host, device=self.device)
        return at

    def make_room(self, length: int) -> None:
        super().make_room(length + self.R)
        if (more := self.text.shape[1] - self.when.shape[1]) > 0:
            self.when = torch.nn.functional.pad(self.when, (0, more))

    def passes_for(self, num_tokens: int) -> int:
        return math.ceil(num_tokens / self.tokens_per_pass)

    def draw(self) -> None:
        self.hidden = self.read(self.denoiser.embed(self.guesses), 0)
        logits = self.slots.logits(self.hidden, self.head)
        places = self.done.unsqueeze(1) + self.rows.offsets
        self.spots = self.spots_after_guesses()
        if self.is_captured:
            settings = *self.settings(), places, GUMBEL, self.cuts
            self.drawn = draw_perturbed(self.legal(logits, self.spots), self.prior, *settings)
            return
        # As far as guesses are right: a place further on is another's.
        self.drawn = torch.full_like(self.guesses, -1)
        for row in range(self.R):
            settings = *self.settings(), places[:, row : row + 1], GUMBEL, self.cuts
            own = self.legal(logits[:, row : row + 1], self.spots[row : row + 1])
            self.drawn[:, row] = draw_perturbed(own, self.prior, *settings)[:, 0]
            guessed = self.guesses[:, row + 1 : row + 2]
            if not bool((self.drawn[:, row : row + 1] == guessed).any()):
                break

    def spots_after_guesses(self) -> list[Spot]:
        """Return where each row stands in the texts' grammars; nothing without masks."""
        if self.masks is None:
            return []
        spots = [self.masks.here]
        for row in range(1, self.R):
            spots.append(self.masks.after(spots[-1], self.guesses[:, row]))
        return spots

    def legal(self, logits: Tensor, spots: Sequence[Spot]) -> Tensor:
        """Return logits (N, W, V) with -inf for tokens that may not come at some spots."""
        if self.masks is None:
            return logits
        allowed = torch.stack([self.masks.allowed(spot) for spot in spots], 1)
        return torch.where(allowed[..., : logits.shape[-1]], logits, -torch.inf)

    def commit(self) -> None:
        done = self.done if self.masks is None else self.done.clone()
        if self.masks is not None:
            self.guesses[:, 1:].masked_fill_(self.is_single, -1)  # which no draw is
        ends = advance_(
            self.drawn, self.guesses, limits=self.limits, active=self.active, steps=self.passes,
            done=self.done, lengths=self.lengths, text=self.text, when=self.when,
        )  # fmt: skip
        if self.masks is not None:
            reached = Spot(*(torch.stack(parts, 1) for parts in zip(*self.spots, strict=True)))
            before = Spot(*(part.gather(1, ends.unsqueeze(1))[:, 0] for part in reached))
            self.masks.move_to(self.masks.after(before, self.last[:, 0]), self.done > done)
        self.guess(ends)

    def guess(self, ends: Tensor) -> None:
        """Write guesses behind the newest token, from the hidden state that was before it."""
        newest = self.guesses[:, 0]
        rows = self.drafted(self.hidden, ends, newest, self.at, self.lengths)
        logits = self.slots.logits(rows, self.head)
        given = self.slots.logits(rows, self.drafted.beside)
        cell, settings = self.drafted.cell, (self.prior, *self.settings())
        if self.masks is None:
            put_guesses_(self.guesses, logits, given, cell, *settings, self.done)
            return
        spot = self.masks.here
        for k in range(self.R - 1):
            pair, one = self.guesses[:, k : k + 2].contiguous(), slice(k, k + 1)
            legal = self.legal(logits[:, one], [spot])
            put_guesses_(pair, legal, given[:, one].contiguous(), cell, *settings, self.done + k)
            self.guesses[:, k + 1] = pair[:, 1]
            spot = self.masks.after(spot, pair[:, 1])

    def texts(self) -> dict[int, Text]:
        ends = torch.minimum(self.done, self.limits).unsqueeze(1)
        rows, half = torch.cat((ends, self.text, self.when), 1).tolist(), self.text.shape[1]
        found = {}
        for slot in self.entries:
            count, *both = rows[slot]
            found[slot] = Text(both[:count], both[half : half + count])
            if count:  # the next look is as far off as this text's passes have made it
                self.tokens_per_pass = count / both[half + count - 1]
        return found
