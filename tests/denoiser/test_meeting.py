"""Loops meet where they ask; each goes on as if it were alone."""

import pytest
import torch

from ssdlm.denoiser.meeting import Loop, meet, next_steps


class Doubling:
    """Doubles numbers, and remembers which it was asked for together."""

    def __init__(self):
        self.asked = []

    def answer(self, numbers):
        self.asked.append(numbers)
        return [2 * number for number in numbers]


def steps(doubling, number, count):
    for _ in range(count):
        number = meet(doubling.answer, number)
        yield number


def test_outside_a_loop_one_is_answered_alone():
    doubling = Doubling()
    assert meet(doubling.answer, 3) == 6
    assert doubling.asked == [[3]]


def test_loops_are_answered_together_and_each_gets_its_own():
    doubling = Doubling()
    loops = [Loop(steps(doubling, number, 2)) for number in (1, 5, 7)]
    assert next_steps(loops) == [2, 10, 14]
    assert next_steps(loops) == [4, 20, 28]
    assert doubling.asked == [[1, 5, 7], [2, 10, 14]]


def test_a_loop_may_join_or_be_left_out_at_any_step():
    doubling = Doubling()
    first, second = (Loop(steps(doubling, number, 3)) for number in (1, 5))
    assert next_steps([first]) == [2]
    assert next_steps([second, first]) == [10, 4]
    assert next_steps([second]) == [20]
    assert doubling.asked == [[1], [5, 2], [10]]


def test_different_questions_are_answered_apart_and_several_in_one_step():
    one, other = Doubling(), Doubling()

    def twice(number):
        yield meet(other.answer, meet(one.answer, number))

    assert next_steps([Loop(twice(1)), Loop(steps(other, 9, 1))]) == [4, 18]
    assert (one.asked, other.asked) == ([[1]], [[9], [2]])


def test_each_loop_keeps_its_own_mind_about_gradients():
    doubling, seen = Doubling(), []

    def recording(is_on):
        with torch.set_grad_enabled(is_on):
            meet(doubling.answer, 1)
            seen.append(torch.is_grad_enabled() == is_on)
        yield None

    next_steps([Loop(recording(is_on)) for is_on in (True, False, True)])
    assert seen == [True] * 3
    assert torch.is_grad_enabled()


def test_what_is_raised_in_a_loop_or_an_answer_reaches_who_runs_them():
    def failing():
        yield 1 / 0

    def answer(numbers):
        raise ValueError("no answer")

    def asking():
        yield meet(answer, 1)

    with pytest.raises(ZeroDivisionError):
        next_steps([Loop(failing())])
    with pytest.raises(ValueError, match="no answer"):
        next_steps([Loop(asking()), Loop(asking())])


def test_a_loop_that_is_given_up_lets_go_of_what_it_holds():
    closed = []

    def holding():
        try:
            yield 1
        finally:
            closed.append(True)

    loop = Loop(holding())
    assert next_steps([loop]) == [1]
    loop.give_up()
    assert closed == [True]
