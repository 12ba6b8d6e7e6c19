"""Which example reads which tokens."""

from __future__ import annotations

import numpy as np
import pytest

from ssdlm.data.windows import PERIOD, Windows, held_out, permute


class Numbers:
    """A stream whose tokens are their own positions."""

    def __init__(self, length: int):
        self.length = length

    def __len__(self) -> int:
        return self.length

    def read(self, start: int, length: int) -> np.ndarray:
        assert 0 <= start <= start + length <= self.length
        return np.arange(start, start + length, dtype=np.uint16)

    def rows(self, starts: np.ndarray, length: int) -> np.ndarray:
        return np.array([self.read(int(s), length) for s in starts]).reshape(-1, length)


def same_key(n: int, key: int) -> np.ndarray:
    return np.full(n, key, dtype=np.uint64)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 100, 1000, 4097])
@pytest.mark.parametrize("key", [0, 12345])
def test_permutation_is_a_bijection(n, key):
    out = permute(np.arange(n), n, same_key(n, key))
    assert sorted(out.tolist()) == list(range(n))


def test_permutation_depends_on_the_key_and_moves_things():
    one, two = (permute(np.arange(500), 500, same_key(500, key)) for key in (1, 2))
    assert (one != two).mean() > 0.9
    assert (one != np.arange(500)).mean() > 0.9
    assert abs(np.corrcoef(np.arange(500), one)[0, 1]) < 0.2


def test_an_epoch_reads_every_window_once_and_the_next_in_another_order():
    windows = Windows([Numbers(1000)], max_len=10, seed=3, shift=False)
    first = windows.batch(np.arange(100))
    second = windows.batch(np.arange(100, 200))
    assert sorted(first[:, 0].tolist()) == list(range(0, 1000, 10))
    assert sorted(second[:, 0].tolist()) == list(range(0, 1000, 10))
    assert (first != second).any()


def test_a_row_is_a_run_of_consecutive_tokens():
    rows = Windows([Numbers(1000)], max_len=7, seed=1).batch(np.arange(50))
    assert (rows[:, 1:] - rows[:, :-1] == 1).all()


def test_an_example_does_not_depend_on_the_batch_it_is_asked_in():
    windows = Windows([Numbers(3000), Numbers(500)], max_len=10, seed=5, weights=(0.3, 0.7))
    together = windows.batch(np.arange(64))
    apart = [windows.batch(np.array([g]))[0] for g in range(64)]
    assert all((together[g] == apart[g]).all() for g in range(64))


def test_the_cut_shifts_from_epoch_to_epoch_when_asked():
    windows = Windows([Numbers(1005)], max_len=10, seed=0, shift=True)
    offsets = {
        int(windows.batch(np.array([e * windows.num_windows(0)]))[0, 0]) % 10 for e in range(40)
    }
    assert len(offsets) > 5


def test_a_mixture_keeps_its_shares_in_every_period():
    windows = Windows([Numbers(3000), Numbers(500)], max_len=10, seed=5, weights=(1.0, 3.0))
    for period in range(2):
        which, order = windows.route(np.arange(PERIOD) + period * PERIOD)
        assert (which == 0).sum() == PERIOD // 4
        assert sorted(order[which == 0].tolist()) == list(
            range(period * PERIOD // 4, (period + 1) * PERIOD // 4)
        )


def test_a_mixture_without_weights_reads_in_proportion_to_size():
    shares = Windows([Numbers(9000), Numbers(1000)], max_len=10, shift=False).shares()
    assert shares.sum() == PERIOD
    assert shares[0] / PERIOD == pytest.approx(0.9, abs=1e-3)


def test_another_seed_reads_in_another_order():
    one, two = (Windows([Numbers(1000)], max_len=10, seed=s).batch(np.arange(50)) for s in (0, 1))
    assert (one != two).any()


def test_a_stream_of_exactly_one_window_is_enough():
    rows = Windows([Numbers(10)], max_len=10).batch(np.arange(3))
    assert (rows == np.arange(10)).all()


def test_a_stream_shorter_than_a_window_is_refused():
    with pytest.raises(ValueError, match=r"9 training tokens.*max_len=10"):
        Windows([Numbers(9)], max_len=10)


def test_weights_must_match_the_folders():
    with pytest.raises(ValueError, match="2 numbers for 1 data folders"):
        Windows([Numbers(100)], max_len=10, weights=(1.0, 2.0))


def test_held_out_rows_are_spread_over_the_stream():
    rows = held_out([Numbers(1000)], max_len=10, count=3)
    assert rows[:, 0].tolist() == [0, 500, 990]
    assert held_out([Numbers(25)], max_len=10, count=64).shape == (2, 10)
    assert held_out([Numbers(5)], max_len=10, count=64).shape == (0, 10)
