"""Chains by a drafter's guesses: checked, taken up and guessed anew in one pass.

batch, denoiser.drafter -> [drafted] -> engine.runners
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ssdlm.denoiser.drafter import DraftedRows, Drafter
from ssdlm.denoiser.slots import Network
from ssdlm.engine.batch import DecodeBatch, Entry, Text
from ssdlm.ops.counters import GUMBEL
from ssdlm.ops.draws import draw_perturbed
from ssdlm.ops.guesses import put_guesses_
from ssdlm.ops.rows import Rows
from ssdlm.ops.trees import advance_
from ssdlm.shapes import Tensor

TOKENS_PER_LOOK = 2.0
"""Tokens that a pass is expected to make certain, between two looks."""


class Drafted(DecodeBatch):
    """The chains of `Chain` in fewer passes: a chain of guesses each, which a pass checks.

    Every token is what `Chain` would write, whatever is guessed.
    """

    is_dense = True

    def __init__(
        self, denoiser: Network, *, drafter: Drafter, num_guesses: int, **sizes: Any
    ) -> None:
        super().__init__(denoiser, **sizes)
        self.drafted = DraftedRows(drafter, self.slots, self.head, num_guesses)
        self.R = 1 + num_guesses
        """Rows that are checked: the newest token, and the guesses behind it."""
        self.rows = Rows.causal(self.R, self.device)
        self.parents = torch.arange(-1, self.R - 1, device=self.device)
        self.guesses, self.limits = self.whole(self.R), self.whole()
        self.text = self.whole(sizes["capacity"] + self.R)
        self.when = torch.zeros_like(self.text)

    def join(
        self, entries: Sequence[Entry], slots: Sequence[int], sources: Sequence[int | None] = ()
    ) -> None:
        super().join(entries, slots, sources)
        at = torch.tensor(slots, device=self.device)
        self.guesses[at] = 0  # any guess will do, for it is checked
        self.guesses[at, 0] = self.last[at, 0]
        self.limits[at] = torch.tensor([one.length for one in entries], device=self.device)

    def make_room(self, length: int) -> None:
        super().make_room(length + self.R)
        if (more := self.text.shape[1] - self.when.shape[1]) > 0:
            self.when = torch.nn.functional.pad(self.when, (0, more))

    def passes_for(self, num_tokens: int) -> int:
        return math.ceil(num_tokens / TOKENS_PER_LOOK)

    def draw(self) -> None:
        self.hidden = self.read(self.denoiser.embed(self.guesses), 0)
        logits = self.slots.logits(self.hidden, self.head)
        places = self.done.unsqueeze(1) + self.rows.offsets
        if self.is_captured:
            settings = *self.settings(), places, GUMBEL, self.cuts
            self.drawn = draw_perturbed(logits, self.prior, *settings)
            return
        # As far as guesses are right: a place further on is another's.
        self.drawn = torch.full_like(self.guesses, -1)
        for row in range(self.R):
            settings = *self.settings(), places[:, row : row + 1], GUMBEL, self.cuts
            self.drawn[:, row] = draw_perturbed(logits[:, row : row + 1], self.prior, *settings)[
                :, 0
            ]
            guessed = self.guesses[:, row + 1 : row + 2]
            if not bool((self.drawn[:, row : row + 1] == guessed).any()):
                break

    def commit(self) -> None:
        path = advance_(
            self.drawn, self.guesses, self.parents, self.R, limits=self.limits, active=self.active,
            steps=self.passes, done=self.done, lengths=self.lengths, text=self.text, when=self.when,
        )  # fmt: skip
        self.guess(path.ends)

    def guess(self, ends: Tensor) -> None:
        """Write guesses behind the newest token, from the hidden state that was before it."""
        newest = self.guesses[:, 0]
        rows = self.drafted(self.hidden, ends, newest, self.at, self.lengths)
        logits = self.slots.logits(rows, self.head)
        given = self.slots.logits(rows, self.drafted.beside)
        settings = self.prior, *self.settings(), self.done
        put_guesses_(self.guesses, logits, given, self.drafted.cell, *settings)

    def texts(self) -> dict[int, Text]:
        ends = torch.minimum(self.done, self.limits).unsqueeze(1)
        rows, half = torch.cat((ends, self.text, self.when), 1).tolist(), self.text.shape[1]
        found = {}
        for slot in self.entries:
            count, *both = rows[slot]
            found[slot] = Text(both[:count], both[half : half + count])
        return found
