"""Texts side by side through one pass of the network, each in a slot of its own.

    scheduler -> [batch] -> tokens;  `engine.programs` says what a pass does

A text joins a free slot, gets its tokens pass by pass, and leaves; texts in a batch do not affect
one another. All that a pass reads and writes lies in tensors of fixed shape, and no pass looks at a
number: a GPU repeats it as one CUDA graph. On a CPU most passes take the slots that have a text,
and no others. What a graph cannot capture is done between two halves of a pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from ssdlm.constraints.grammar_mask import GrammarMask
from ssdlm.constraints.placement import Placement
from ssdlm.denoiser.slots import Slots
from ssdlm.diffusion.bias import UNBIASED, Bias
from ssdlm.engine.biases import Biases
from ssdlm.engine.chooser import Chooser
from ssdlm.engine.recording import Graphs
from ssdlm.engine.views import Frame
from ssdlm.guidance.gradient import guided
from ssdlm.ops.padding import padded, padded_head
from ssdlm.ops.rows import Behind, Rows
from ssdlm.shapes import Tensor

PREFILL_STEP = 64
"""On a GPU contexts are read in runs whose lengths are multiples of this."""
FRAMES = 8
"""Passes that a GPU does before those who watch see each of them."""
MOST_RECORDED = 16_384
"""Tokens of contexts that a graph reads at once; more keep a GPU busy without one."""


@dataclass(frozen=True)
class Entry:
    """A text that joins a batch."""

    context: tuple[int, ...]
    seed: int
    top_p: float
    """Negative where the likeliest token of the nucleus is taken."""
    temperature: float
    suppressed: int
    """A token that is not written; -1 for none."""
    length: int
    """Tokens to write."""
    top_k: int = 0
    min_p: float = 0.0
    bias: Bias = UNBIASED
    """What is added to its logits, in a batch with biases."""
    written: tuple[int, ...] = ()
    """Tokens of the context that are the text's own."""
    placement: Placement | None = None
    """What its tokens are held to, in a batch with masks."""
    guide: guided | None = None
    """What steers its logits between the halves of a pass."""
    chooser: Chooser | None = None
    """What chooses its tokens where a draw alone does not; it asks guides itself."""
    is_watched: bool = False
    """Whether frames of its passes are kept."""
    described: tuple[int, ...] = ()
    """The context behind a description, in a batch whose texts are steered by some."""
    weight: float = 0.0
    """How far the description steers."""


class Traits(NamedTuple):
    """What the texts of a batch have in common, beside the program that writes them."""

    is_masked: bool = False
    """Whether draws are held to grammars."""
    is_strict: bool = False
    """Whether a graph draws from what is legal alone; forbidden words replace what was drawn."""
    is_biased: bool = False
    """Whether logits have biases or penalties."""
    is_cut: bool = False
    """Whether draws have a top_k or a min_p."""
    is_described: bool = False
    """Whether each text has a copy behind a description, `num_slots` slots further on."""
    is_watched: bool = False
    """Whether a graph keeps frames of its passes."""
    is_invariant: bool = False
    """Whether products are such that no row's roundings depend on others."""
    cuts_evidence: bool = False
    """Whether top_p cuts logits with their evidence, and not what the network adds alone."""
    ends_likely: bool = False
    """Whether a block's last draw is of its likeliest tokens, whatever was drawn before."""
    has_places: bool = False
    """Whether words or pins have places in its blocks."""
    has_sizes: bool = False
    """Whether blocks may be shorter than the window: what is behind them is seen by none."""
    has_guides: bool = False
    """Whether a graph leaves its guides to be asked between two halves of a pass."""


class Text(NamedTuple):
    """A text as far as it has come."""

    tokens: list[int]
    when: Sequence[int]
    """The pass that decided each token, counted from 1."""


PLAIN = Traits()


class DecodeBatch(ABC):
    """Slots for texts, and what is kept of each; a subclass is a program, which does the passes."""

    rows: Rows
    """How the rows of a pass stand behind a slot."""

    counts_context = False
    """Whether passes that read a context are among those of its blocks."""
    is_noisy = False
    """Whether open positions have evidence, which is as wide as the vocabulary."""
    is_dense = False
    """Whether a pass takes all slots on a CPU too; those without a text compute nothing of use."""

    def __init__(
        self,
        denoiser: Any,
        traits: Traits = PLAIN,
        *,
        num_slots: int,
        capacity: int,
    ) -> None:
        self.denoiser, self.device, self.num_slots = denoiser, denoiser.device, num_slots
        self.traits, self.is_captured = traits, self.device.type == "cuda"
        self.num_frames = FRAMES * traits.is_watched if self.is_captured else 1
        """Passes of which frames are kept, for those who watch; 0 where a graph keeps none."""
        self.set_up(capacity)
        V = len(self.prior)
        self.masks = GrammarMask(num_slots, V, self.device) if traits.is_masked else None
        self.biases = Biases(num_slots, V, self.device) if traits.is_biased else None
        # Rows of one table: a text that joins writes its column by one operation.
        self.numbers = torch.zeros(6, num_slots, device=self.device, dtype=torch.int64)
        self.seeds, self.suppressed, self.top_ks, *counts = self.numbers.unbind()
        self.done, self.passes, self.active = counts
        self.last, self.described_last = self.whole(1), self.whole(1)
        self.suppressed.fill_(-1)
        self.text = self.whole(capacity + 1)
        self.reals = torch.ones(4, num_slots, device=self.device)
        self.temperatures, self.top_ps, self.min_ps, self.weights = self.reals.unbind()
        self.entries: dict[int, Entry] = {}
        """The texts, by slot."""
        self.here: slice | Tensor = slice(None)
        """The slots that a pass takes: all on a GPU, those with a text on a CPU."""
        self.at = torch.arange(num_slots, device=self.device)
        """The same as numbers."""
        self.copies_at = torch.arange((1 + traits.is_described) * num_slots, device=self.device)
        """The slots that a pass reads: those, and where texts are described their copies."""
        self.unread: dict[int, Tensor] = {}
        """Contexts that the next pass reads too, by slot: on a CPU, where a pass costs most."""
        self.graphs = Graphs()
        self.prompts: dict[str, tuple[Tensor, Tensor]] = {}
        """What graphs of contexts read, by name; each is recorded when its shape comes again."""

    def set_up(self, capacity: int) -> None:
        """Make the slots, and lay out the output head."""
        denoiser, traits = self.denoiser, self.traits
        count = (1 + traits.is_described) * self.num_slots
        self.slots = Slots(denoiser, count, capacity, is_invariant=traits.is_invariant)
        self.read_lengths = self.slots.lengths
        """How many tokens each slot has read, copies too."""
        self.lengths = self.read_lengths[: self.num_slots]
        head, prior = denoiser.head.to(denoiser.dtype), denoiser.prior
        if self.is_captured and not self.is_noisy:  # odd widths are slow to multiply
            head, prior = padded_head(head, prior, padded(len(prior)))
        self.head, self.prior = head, prior.contiguous()

    def whole(self, *shape: int, fill: int = 0) -> Tensor:
        """Return a table of whole numbers with a row for each slot."""
        size = (self.num_slots, *shape)
        return torch.full(size, fill, device=self.device, dtype=torch.int64)

    @torch.no_grad()
    def join(
        self, entries: Sequence[Entry], slots: Sequence[int], sources: Sequence[int | None] = ()
    ) -> Tensor:
        """Put texts into free slots, and return these: their contexts are read but for a token.

        A text may fork from a source: a slot that has read its context, which may be its own.
        """
        sources = sources or [None] * len(slots)
        lengths = [len(entry.context) - 1 for entry in entries]
        longest = max(lengths)
        if self.is_captured:
            longest = -(-longest // PREFILL_STEP) * PREFILL_STEP
        else:
            longest_context = max(len(ids) for e in entries for ids in (e.context, e.described))
            self.make_room(longest_context + max(one.length for one in entries))
        for entry, slot, source in zip(entries, slots, sources, strict=True):
            if source not in (None, slot):
                self.fork(entry, slot, source)
        # Everything in one table: each way to a GPU takes as long as a layer.
        rows = np.zeros((len(entries), 9 + longest), np.int64)
        for row, slot, one, length in zip(rows, slots, entries, lengths, strict=True):
            row[:7] = slot, one.seed, one.suppressed, one.top_k, 0, 0, 1
            row[7 : 9 + length] = length, one.context[-1], *one.context[:-1]
        table = torch.from_numpy(rows).to(self.device)
        reals = [(one.temperature, one.top_p, one.min_p, one.weight) for one in entries]
        real = torch.tensor(reals, device=self.device)
        at, ids = table[:, 0].contiguous(), table[:, 9:].contiguous()
        self.numbers[:, at], self.reals[:, at] = table[:, 1:7].T, real.T
        self.lengths[at], self.last[at] = table[:, 7], table[:, 8:9]
        if self.traits.is_described:
            self.describe(entries, at)
        self.entries |= dict(zip(slots, entries, strict=True))
        if self.biases is not None:
            self.biases.join([e.bias for e in entries], [e.written for e in entries], at)
        if self.masks is not None:
            version = self.masks.version
            self.masks.join([one.placement for one in entries], slots)
            if self.masks.version != version:  # graphs know tables that are gone
                self.graphs.clear()
        self.count_slots()
        new = [row for row, source in enumerate(sources) if source is None]
        if self.is_captured and new:
            is_all = len(new) == len(slots)
            self.read_contexts(ids if is_all else ids[new], at if is_all else at[new])
            if self.traits.is_described:
                others = [entries[row].described[:-1] for row in new]
                self.read_contexts(self.of_one_length(others), at[new] + self.num_slots)
        elif not self.is_captured:
            for row in new:
                one, slot = entries[row], slots[row]
                self.leave_unread(one.context, slot)
                if self.traits.is_described:
                    self.leave_unread(one.described, slot + self.num_slots)
        return at

    def fork(self, entry: Entry, slot: int, source: int) -> None:
        """Let a text have read what another has."""
        self.slots.copy(source, slot, len(entry.context) - 1)
        if self.traits.is_described:
            copies = source + self.num_slots, slot + self.num_slots
            self.slots.copy(*copies, len(entry.described) - 1)

    def describe(self, entries: Sequence[Entry], at: Tensor) -> None:
        """Take note of what copies of texts in some slots have read."""
        found = [(one.described[-1], len(one.described) - 1) for one in entries]
        last, lengths = torch.tensor(found, device=self.device).T
        self.described_last[at, 0], self.read_lengths[at + self.num_slots] = last, lengths

    def of_one_length(self, contexts: Sequence[Sequence[int]]) -> Tensor:
        """Return contexts as a GPU reads them, of one length."""
        longest = -(-max(map(len, contexts)) // PREFILL_STEP) * PREFILL_STEP
        rows = [(*one, *(0,) * (longest - len(one))) for one in contexts]
        return torch.tensor(rows, device=self.device)

    def leave_unread(self, context: Sequence[int], slot: int) -> None:
        """Let the next pass read a context into a slot, but for its last token."""
        self.read_lengths[slot] = 0
        if len(context) > 1:
            self.unread[slot] = torch.tensor([context[:-1]])

    def make_room(self, length: int) -> None:
        """Let slots hold texts of so many tokens; on a CPU alone."""
        self.slots.grow(length + len(self.rows.offsets) + 1)
        if (more := self.slots.capacity + 1 - self.text.shape[1]) > 0:
            self.text = F.pad(self.text, (0, more))

    def leave(self, slots: Sequence[int]) -> None:
        """Free slots; what is in them is written over by whoever joins."""
        self.active[torch.tensor(slots, device=self.device)] = 0
        for slot in slots:
            del self.entries[slot]
            self.unread.pop(slot, None)
            self.unread.pop(slot + self.num_slots, None)
        if self.masks is not None:
            self.masks.leave(slots)
        self.count_slots()

    @property
    def takes_all(self) -> bool:
        """Whether a pass takes all slots, those without a text included."""
        return self.is_captured or self.is_dense

    def count_slots(self) -> None:
        """Take note of which slots have a text; a graph takes them all."""
        if not self.takes_all:
            self.here = self.at = torch.tensor(sorted(self.entries), dtype=torch.int64)
            copies = (self.at, self.at + self.num_slots) if self.traits.is_described else (self.at,)
            self.copies_at = torch.cat(copies)

    def read_contexts(self, ids: Tensor, at: Tensor) -> None:
        """Read padded contexts (N, C): one by a graph, several from the second time on."""
        N, C = ids.shape
        if N * C > MOST_RECORDED:
            self.read_ids(ids, at)
        if not 0 < N * C <= MOST_RECORDED:
            return
        more = (1 << (N - 1).bit_length()) - N  # few sizes: the last text is read again
        ids, at = torch.cat((ids, ids[-1:].expand(more, C))), torch.cat((at, at[-1:].expand(more)))
        name = f"contexts {N + more} {C}"
        is_new = name not in self.prompts
        own = self.prompts.setdefault(name, (ids, at))
        for mine, given in zip(own, (ids, at), strict=True):
            mine.copy_(given)
        if is_new and N > 1:
            self.read_ids(*own)
        else:
            self.do(name, lambda: self.read_ids(*own))

    def read_ids(self, ids: Tensor, at: Tensor) -> None:
        """Read tokens (N, C) into slots from their beginning."""
        behind = Behind(Rows.causal(ids.shape[1], ids.device), at, torch.zeros_like(at))
        self.slots.read(self.denoiser.embed(ids), behind, slice(0, 1))

    def read(self, x: Tensor, first: int) -> Tensor:
        """Return the output of a pass's rows from the first on, x being what they read."""
        x = torch.cat((x, self.as_described(x))) if self.traits.is_described else x
        lengths = self.read_lengths if self.takes_all else self.read_lengths[self.copies_at]
        behind = Behind(self.rows, self.copies_at, lengths, self.row_counts())
        if not self.unread:
            return self.steered_by_words(self.slots.read(x, behind, slice(first, None)))
        slots = behind.slots.tolist()
        found: dict[int, Tensor] = {}
        if rest := [row for row, slot in enumerate(slots) if slot not in self.unread]:
            at = Behind(self.rows, behind.slots[rest], behind.lengths[rest])
            found |= zip(rest, self.slots.read(x[rest], at, slice(first, None)), strict=True)
        for row, slot in enumerate(slots):
            if (context := self.unread.pop(slot, None)) is not None:
                rows, count = self.rows.after(context.shape[1]), context.shape[1]
                both = torch.cat((self.denoiser.embed(context), x[row : row + 1]), 1)
                at = Behind(rows, behind.slots[row : row + 1], behind.lengths[row : row + 1])
                found[row] = self.slots.read(both, at, slice(count + first, None))[0]
                self.read_lengths[slot] = count
        return self.steered_by_words(torch.stack([found[row] for row in range(len(x))]))

    def row_counts(self) -> Tensor | None:
        """Return how many rows of a pass each text has, if some have fewer than there are."""
        return None

    def as_described(self, x: Tensor) -> Tensor:
        """Return what the rows of copies read: the same, but at first their own prompt's last."""
        here = self.here
        is_first, word = self.done[here] == 0, self.denoiser.embed(self.described_last[here])
        return torch.cat((torch.where(is_first.view(-1, 1, 1), word, x[:, :1]), x[:, 1:]), 1)

    def steered_by_words(self, hidden: Tensor) -> Tensor:
        """Return the output of texts' rows, led by that of their copies (`guidance.described`).

        The head is linear: what holds for logits holds for what it reads.
        """
        if not self.traits.is_described:
            return hidden
        plain, told = hidden.float().chunk(2)
        return (plain + self.weights[self.here, None, None] * (told - plain)).to(hidden.dtype)

    @torch.no_grad()
    def run(self, count: int) -> None:
        """Do some passes; no text may have fewer to go."""
        for _ in range(count):
            before = self.done.clone() if self.masks is not None and self.masks.needs_host else None
            self.one_pass()
            if self.masks is not None and before is not None:
                self.masks.read(self.last[:, 0].tolist(), (self.done > before).tolist())

    def one_pass(self) -> None:
        """Do one pass for every text."""
        self.do("step", self.step)

    def do(self, name: str, work: Callable[[], None]) -> None:
        """Do a part of a pass, on a GPU as one graph."""
        if not self.is_captured:
            work()
            return
        self.graphs.do(name, work, self.gates())

    def gates(self) -> tuple[Tensor, ...]:
        """Return what tells which texts get on with a pass; while it is recorded, none does."""
        return (self.active,)

    def step(self) -> None:
        """Draw, and take in what was drawn."""
        self.draw()
        self.commit()

    @abstractmethod
    def draw(self) -> None:
        """Run the rows, and draw a token for each that is open."""

    @abstractmethod
    def commit(self) -> None:
        """Take in what was drawn, and move on."""

    def passes_for(self, num_tokens: int) -> int:
        """Return how many passes may go by before somebody looks, with so many tokens to go."""
        return num_tokens

    def settings(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return what a draw needs to know of each text."""
        here = self.here
        return self.suppressed[here], self.temperatures[here], self.top_ps[here], self.seeds[here]

    @property
    def cuts(self) -> tuple[Tensor, Tensor] | None:
        """What more a draw needs to know where texts have a top_k or a min_p."""
        return (self.top_ks[self.here], self.min_ps[self.here]) if self.traits.is_cut else None

    def biased(self, logits: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (N, W, V) with biases and penalties, and what a draw is to add to them."""
        if self.biases is None:
            return logits, added
        lean = self.biases.lean(self.here, self.tally())[..., : logits.shape[-1]]
        return logits.float() + added + lean, torch.zeros_like(added)

    def tally(self) -> Tensor:
        """Return how often each token stands in what is decided of each text (N, 1, V)."""
        assert self.biases is not None
        text = self.text[self.here]
        is_there = torch.arange(text.shape[1], device=self.device) < self.done[self.here, None]
        before = self.biases.before[self.here]
        return before.scatter_add(1, text, is_there.to(before)).unsqueeze(1)

    def masked(self, logits: Tensor) -> Tensor:
        """Return logits (N, W, V) with -inf for tokens that may not come next."""
        if self.masks is None:
            return logits
        allowed = self.masks.allowed()[self.here, None, : logits.shape[-1]]
        return torch.where(allowed, logits, -torch.inf)

    def write(self, tokens: Tensor, gets_one: Tensor) -> None:
        """Put a decided token (N, 1) at the end of each text that gets one."""
        here, active = self.here, gets_one[self.here]
        if self.takes_all:
            self.text.scatter_(1, self.done.unsqueeze(1), tokens)
        else:
            self.text[here, self.done[here]] = tokens[:, 0]
        self.last[here] = torch.where(active.bool().unsqueeze(1), tokens, self.last[here])
        # Slots without a text are not active.
        self.lengthen(gets_one)
        self.done.add_(gets_one)
        if self.masks is not None:
            self.masks.advance(self.last[:, 0], gets_one)

    def lengthen(self, counts: Tensor) -> None:
        """Take note that each slot has read so many tokens more, and so has its copy."""
        self.read_lengths.view(-1, self.num_slots).add_(counts)

    def texts(self) -> dict[int, Text]:
        """Return the texts so far, by slot; a GPU is waited for."""
        longest = max((one.length for one in self.entries.values()), default=0)
        if not self.is_captured:
            longest = min(longest, int(self.done.max()))
        rows = torch.cat((self.done.unsqueeze(1), self.text[:, :longest]), 1).tolist()
        # A last block may be longer than what is left of its text.
        return {
            slot: self.text_of(rows[slot][1 : 1 + min(rows[slot][0], entry.length)])
            for slot, entry in self.entries.items()
        }

    def frames(self, count: int) -> dict[int, list[Frame]]:
        """Return what each of the latest passes drew for texts that are watched, by slot."""
        texts = self.texts()
        return {
            slot: [Frame([token], []) for token in texts[slot].tokens[-count:]]
            for slot, entry in self.entries.items()
            if entry.is_watched
        }

    def text_of(self, tokens: list[int]) -> Text:
        """Return a text of these tokens, and when each of them was decided."""
        return Text(tokens, range(1, 1 + len(tokens)))
