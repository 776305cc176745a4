"""Gradients of small numpy models: operations remember how their results came about.

Reverse accumulation (Griewank and Walther, "Evaluating Derivatives", section 3.2) over the few
operations that the routers need, so that each router's file states its loss and nothing else; and
Adam (Kingma and Ba, arXiv 1412.6980, algorithm 1) with decoupled weight decay (Loshchilov and
Hutter, arXiv 1711.05101, algorithm 2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from batuta.baselines.routing.arrays import Floats

Parent = tuple["Node", Callable[[Floats], Floats]]
"""An argument, and its gradient from that of the result."""

_TINY = 1e-12
_NONE = np.zeros(0)
_AGES = count()


@final
class Node:
    """An array, and what it was computed from; single precision stays single."""

    __slots__ = ("age", "gradient", "parents", "value")

    def __init__(self, value: NDArray[Any] | float, parents: tuple[Parent, ...] = ()) -> None:
        array = np.asarray(value)
        self.value: Floats = array if array.dtype.kind == "f" else array.astype(np.float64)
        self.gradient: Floats = _NONE
        """Of the node that `backward` was called on; empty before."""
        self.parents = parents
        self.age = next(_AGES)
        """Greater than those of its parents."""

    def __add__(self, other: Node) -> Node:
        mine, its = self.value.shape, other.value.shape
        return Node(
            self.value + other.value,
            ((self, lambda g: _reduced(g, mine)), (other, lambda g: _reduced(g, its))),
        )

    def __sub__(self, other: Node) -> Node:
        return self + other.times(-1.0)

    def __mul__(self, other: Node) -> Node:
        left, right = self.value, other.value
        return Node(
            left * right,
            (
                (self, lambda g: _reduced(g * right, left.shape)),
                (other, lambda g: _reduced(g * left, right.shape)),
            ),
        )

    def __matmul__(self, other: Node) -> Node:
        """Of two matrices."""
        left, right = self.value, other.value
        return Node(left @ right, ((self, lambda g: g @ right.T), (other, lambda g: left.T @ g)))

    def __getitem__(self, index: Any) -> Node:
        shape = self.value.shape

        def back(gradient: Floats) -> Floats:
            whole = np.zeros(shape, gradient.dtype)
            np.add.at(whole, index, gradient)
            return whole

        return Node(self.value[index], ((self, back),))

    @property
    def transposed(self) -> Node:
        """The matrix with its axes exchanged."""
        return Node(self.value.T, ((self, lambda g: g.T),))

    def mapping(self, rows: Floats) -> Node:
        """The product of a constant matrix and this one."""
        return Node(rows @ self.value, ((self, lambda g: rows.T @ g),))

    def times(self, factor: NDArray[Any] | float) -> Node:
        """Multiplied by constants."""
        shape = self.value.shape
        return Node(self.value * factor, ((self, lambda g: _reduced(g * factor, shape)),))

    def plus(self, term: NDArray[Any] | float) -> Node:
        """With constants added."""
        shape = self.value.shape
        return Node(self.value + term, ((self, lambda g: _reduced(g, shape)),))

    def sum(self, axis: int | None = None) -> Node:
        """Over an axis, or of everything."""
        shape = self.value.shape

        def back(gradient: Floats) -> Floats:
            spread = gradient if axis is None else np.expand_dims(gradient, axis)
            return np.broadcast_to(spread, shape)

        return Node(self.value.sum(axis), ((self, back),))

    def exp(self) -> Node:
        """Euler's number to the power of each."""
        result = np.exp(self.value)
        return Node(result, ((self, lambda g: g * result),))

    def backward(self) -> None:
        """Sets `gradient` of every node that this number was computed from."""
        order = _sorted(self)
        met = {id(self)}
        self.gradient = np.ones_like(self.value)
        for node in order:
            for parent, back in node.parents:
                more = back(node.gradient)
                if id(parent) in met:
                    more = parent.gradient + more
                met.add(id(parent))
                parent.gradient = more.astype(parent.value.dtype, copy=False)


def unit(rows: Node) -> Node:
    """Each row at length 1."""
    lengths = np.linalg.norm(rows.value, axis=-1, keepdims=True) + _TINY
    result = rows.value / lengths

    def back(gradient: Floats) -> Floats:
        along = (gradient * result).sum(axis=-1, keepdims=True)
        return (gradient - along * result) / lengths

    return Node(result, ((rows, back),))


def log_softmax(logits: Node) -> Node:
    """Over the last axis; a logit of -inf has no part in it."""
    shifted = logits.value - logits.value.max(axis=-1, keepdims=True)
    result = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    shares = np.exp(result)
    return Node(result, ((logits, lambda g: g - shares * g.sum(axis=-1, keepdims=True)),))


def log_sigmoid(logits: Node) -> Node:
    """The logarithm of 1 / (1 + e^-x)."""
    result = -np.logaddexp(0.0, -logits.value)
    return Node(result, ((logits, lambda g: g * -np.expm1(result)),))


@final
class Adam:
    """Changes parameters in place, a step at a time."""

    def __init__(self, parameters: Mapping[str, Node], rate: float, decay: float = 0.0) -> None:
        self._parameters = parameters
        self._rate = rate
        self._decay = decay
        self._first = {name: np.zeros_like(node.value) for name, node in parameters.items()}
        self._second = {name: np.zeros_like(node.value) for name, node in parameters.items()}
        self._steps = 0

    def step(self, loss: Node) -> None:
        """Down the gradient of `loss`; a parameter that it does not depend on stays."""
        for node in self._parameters.values():
            node.gradient = _NONE
        loss.backward()
        self._steps += 1
        for name, node in self._parameters.items():
            if node.gradient.size:
                node.value = node.value * (1 - self._rate * self._decay) - self._move(name, node)

    def _move(self, name: str, node: Node, keep: float = 0.9, keep2: float = 0.999) -> Floats:
        first, second = self._first[name], self._second[name]
        first += (1 - keep) * (node.gradient - first)
        second += (1 - keep2) * (node.gradient * node.gradient - second)
        spread = np.sqrt(second / (1 - keep2**self._steps))
        return self._rate / (1 - keep**self._steps) * first / (spread + 1e-8)


def _reduced(gradient: Floats, shape: tuple[int, ...]) -> Floats:
    """The sum over the axes along which an array of that shape was repeated."""
    if gradient.shape == shape:
        return gradient
    while gradient.ndim > len(shape):
        gradient = gradient.sum(axis=0)
    for axis, size in enumerate(shape):
        if size == 1 and gradient.shape[axis] > 1:
            gradient = gradient.sum(axis=axis, keepdims=True)
    return gradient


def _sorted(last: Node) -> list[Node]:
    """Every node that `last` depends on, each before the nodes that it was computed from."""
    found = {last.age: last}
    stack = [last]
    while stack:
        for parent, _ in stack.pop().parents:
            if parent.age not in found:
                found[parent.age] = parent
                stack.append(parent)
    return [found[age] for age in sorted(found, reverse=True)]
