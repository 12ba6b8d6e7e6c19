"""A chat template as a program that ends: in a sandbox, its work bounded.  [template] -> chat

A template is Jinja that somebody else wrote. Whatever repeats, loops and calls, is counted, and
whatever makes a text longer is charged for its characters before it does.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache, partial
from math import prod
from typing import Any, NoReturn

from jinja2 import nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MOST_CHARACTERS = 3 * 10**8
"""What a template may write and move in all, in characters."""
MOST_SECONDS = 5.0
WORK = "work done"
"""The name of the meter among a template's variables, which no template can spell."""
READ_WHOLE = ("join", "format", "format_map", "replace", "translate", "tojson", "string", "pprint")
"""Filters and methods that read lists to the bottom, or write a text once for each part of one."""
WIDE = re.compile(r"\d{6}|%[-+ #.\d]*\*")
"""A format that pads to a great width, or to one that comes with the values."""


class Meter:
    """What a template still may do."""

    def __init__(self, step: int) -> None:
        self.step = step
        """Characters that a loop or call may write by itself."""
        self.left, self.end = MOST_CHARACTERS, time.monotonic() + MOST_SECONDS

    def charge(self, amount: int) -> None:
        """Raise where a template has done too much."""
        self.left -= amount
        if self.left < 0 or time.monotonic() > self.end:
            raise ValueError("it repeats too much")

    def weigh(self, value: Any) -> int:
        """Return the characters of a value, lists read to the bottom, and charge them."""
        total, todo = 0, [value]
        while todo:
            one = todo.pop()
            items = [*one, *one.values()] if isinstance(one, Mapping) else one
            todo += items if isinstance(items, list | tuple) else ()
            total += size(one)
            self.charge(size(one))
        return total

    def charge_call(self, name: str, first: Any, *others: Any) -> None:
        """Charge what a filter or method of some values may write."""
        if name.startswith("format") and WIDE.search(str(first)):
            self.charge(MOST_CHARACTERS + 1)
        if name == "replace":
            others = others[1:2]  # what is sought makes nothing longer
        if name in READ_WHOLE:
            self.charge(prod(1 + self.weigh(one) for one in (first, *others)))
        counts = [1 + abs(one) for one in others if isinstance(one, int)]
        self.charge(prod(counts) * sum(map(size, (first, *others))))


def size(value: Any) -> int:
    """Return the length of a text or list; 1 of anything else."""
    return 1 + len(value) if isinstance(value, str | bytes | list | tuple | Mapping) else 1


class Environment(ImmutableSandboxedEnvironment):
    """A sandbox in which operators, calls, filters and outputs are charged."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter: Meter = context.parent[WORK]
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length(), right if operator == "**" else right.bit_length()
            meter.charge(abs(prod(bits)) * (1000 if operator == "**" else 1))
        elif operator == "*":
            meter.charge(prod(abs(x) if isinstance(x, int) else size(x) for x in (left, right)))
        elif operator == "%" and isinstance(left, str):
            meter.charge_call("format", left, right)
        else:
            meter.charge(size(left) + size(right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **named: Any) -> Any:
        meter: Meter = context.parent[WORK]
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | bytes | int | list | tuple | Mapping):
            meter.charge_call(method.__name__, owner, *args, *named.values())
        else:
            meter.charge(meter.step)
        return charged(context, super().call(context, function, *args, **named))


@pass_context
def counted(context: Context, items: Any) -> Iterator[Any]:
    """Yield what a loop goes over, and charge each round."""
    for item in items:
        context.parent[WORK].charge(context.parent[WORK].step)
        yield item


@pass_context
def charged(context: Context, value: Any) -> Any:
    """Return a value that was made, and charge its length."""
    context.parent[WORK].charge(size(value))
    return value


@pass_context
def written(context: Context, value: Any) -> Any:
    """Return a value that is written, and charge all its characters."""
    context.parent[WORK].weigh(value)
    return value


def bounded(name: str, plain: ImmutableSandboxedEnvironment) -> Any:
    """Return a filter of an environment that is charged for what it does."""

    @pass_context
    def run(context: Context, value: Any, /, *args: Any, **named: Any) -> Any:
        context.parent[WORK].charge_call(name, value, *args, *named.values())
        return charged(context, plain.call_filter(name, value, args, named, context))

    return run


class Marks(Extension):
    """The mark of transformers around what a model says, which is for training: its contents."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Counting(NodeTransformer):
    """Puts filters that count around what loops go over and texts that are joined."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = through("counted", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return through("charged", node)


def through(name: str, node: Any) -> nodes.Filter:
    """Return an expression behind a filter."""
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


@lru_cache(maxsize=8)
def compiled(template: str) -> Any:
    """Return a template that can be rendered, with what templates of the Hub count on."""

    def refuse(message: str) -> NoReturn:
        raise ValueError(message)

    # Constants are not computed before they are counted.
    shape: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "optimized": False}
    plain = ImmutableSandboxedEnvironment()
    plain.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    marks = [Marks, "jinja2.ext.loopcontrols"]
    environment = Environment(extensions=marks, finalize=written, **shape)
    environment.filters = {name: bounded(name, plain) for name in plain.filters}
    environment.filters |= {"counted": counted, "charged": charged}
    del environment.globals["lipsum"]
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(Counting().visit(environment.parse(template)))


def render(template: str, **variables: Any) -> str:
    """Return what a template makes of its variables."""
    return compiled(template).render({WORK: Meter(len(template)), **variables})
