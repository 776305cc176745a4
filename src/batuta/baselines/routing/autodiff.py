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

Parent = tuple["Variable", Callable[[Floats], Floats]]
"""An argument, and its gradient from that of the result."""

_TINY = 1e-12
_NO_GRADIENT = np.zeros(0)
_CREATION_ORDER = count()


@final
class Variable:
    """An array, and what it was computed from; single precision stays single."""

    __slots__ = ("creation_number", "gradient", "parents", "value")

    def __init__(self, value: NDArray[Any] | float, parents: tuple[Parent, ...] = ()) -> None:
        array = np.asarray(value)
        self.value: Floats = array if array.dtype.kind == "f" else array.astype(np.float64)
        self.gradient: Floats = _NO_GRADIENT
        """Of the node that `backward` was called on; empty before."""
        self.parents = parents
        self.creation_number = next(_CREATION_ORDER)
        """Greater than those of its parents."""

    def __add__(self, other: Variable) -> Variable:
        mine, its = self.value.shape, other.value.shape
        return Variable(
            self.value + other.value,
            ((self, lambda g: _sum_to_shape(g, mine)), (other, lambda g: _sum_to_shape(g, its))),
        )

    def __sub__(self, other: Variable) -> Variable:
        return self + other.multiply(-1.0)

    def __mul__(self, other: Variable) -> Variable:
        left, right = self.value, other.value
        return Variable(
            left * right,
            (
                (self, lambda g: _sum_to_shape(g * right, left.shape)),
                (other, lambda g: _sum_to_shape(g * left, right.shape)),
            ),
        )

    def __matmul__(self, other: Variable) -> Variable:
        """Of two matrices."""
        left, right = self.value, other.value
        return Variable(
            left @ right, ((self, lambda g: g @ right.T), (other, lambda g: left.T @ g))
        )

    def __getitem__(self, index: Any) -> Variable:
        shape = self.value.shape

        def back(gradient: Floats) -> Floats:
            whole = np.zeros(shape, gradient.dtype)
            np.add.at(whole, index, gradient)
            return whole

        return Variable(self.value[index], ((self, back),))

    @property
    def transpose(self) -> Variable:
        """The matrix with its axes exchanged."""
        return Variable(self.value.T, ((self, lambda g: g.T),))

    def premultiply(self, rows: Floats) -> Variable:
        """The product of a constant matrix and this one."""
        return Variable(rows @ self.value, ((self, lambda g: rows.T @ g),))

    def multiply(self, factor: NDArray[Any] | float) -> Variable:
        """Multiplied by constants."""
        shape = self.value.shape
        return Variable(self.value * factor, ((self, lambda g: _sum_to_shape(g * factor, shape)),))

    def add(self, term: NDArray[Any] | float) -> Variable:
        """With constants added."""
        shape = self.value.shape
        return Variable(self.value + term, ((self, lambda g: _sum_to_shape(g, shape)),))

    def sum(self, axis: int | None = None) -> Variable:
        """Over an axis, or of everything."""
        shape = self.value.shape

        def back(gradient: Floats) -> Floats:
            spread = gradient if axis is None else np.expand_dims(gradient, axis)
            return np.broadcast_to(spread, shape)

        return Variable(self.value.sum(axis), ((self, back),))

    def exp(self) -> Variable:
        """Euler's number to the power of each."""
        result = np.exp(self.value)
        return Variable(result, ((self, lambda g: g * result),))

    def backward(self) -> None:
        """Sets `gradient` of every node that this number was computed from."""
        order = _topological_order(self)
        met = {id(self)}
        self.gradient = np.ones_like(self.value)
        for node in order:
            for parent, back in node.parents:
                more = back(node.gradient)
                if id(parent) in met:
                    more = parent.gradient + more
                met.add(id(parent))
                parent.gradient = more.astype(parent.value.dtype, copy=False)


def normalize_rows(rows: Variable) -> Variable:
    """Each row at length 1."""
    norms = np.linalg.norm(rows.value, axis=-1, keepdims=True)
    lengths = norms + _TINY  # a row of zeros stays one
    result = rows.value / lengths

    def back(gradient: Floats) -> Floats:
        along = (gradient * result).sum(axis=-1, keepdims=True)
        return (gradient - along * rows.value / np.maximum(norms, _TINY)) / lengths

    return Variable(result, ((rows, back),))


def log_softmax(logits: Variable) -> Variable:
    """Over the last axis; a logit of -inf has no part in it."""
    shifted = logits.value - logits.value.max(axis=-1, keepdims=True)
    result = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    shares = np.exp(result)
    return Variable(result, ((logits, lambda g: g - shares * g.sum(axis=-1, keepdims=True)),))


def log_sigmoid(logits: Variable) -> Variable:
    """The logarithm of 1 / (1 + e^-x)."""
    result = -np.logaddexp(0.0, -logits.value)
    return Variable(result, ((logits, lambda g: g * -np.expm1(result)),))


@final
class Adam:
    """Changes parameters in place, a step at a time."""

    def __init__(self, parameters: Mapping[str, Variable], rate: float, decay: float = 0.0) -> None:
        self._parameters = parameters
        self._rate = rate
        self._decay = decay
        self._first = {name: np.zeros_like(node.value) for name, node in parameters.items()}
        self._second = {name: np.zeros_like(node.value) for name, node in parameters.items()}
        self._steps = 0

    def step(self, loss: Variable) -> None:
        """Down the gradient of `loss`; a parameter that it does not depend on stays."""
        for node in self._parameters.values():
            node.gradient = _NO_GRADIENT
        loss.backward()
        self._steps += 1
        for name, node in self._parameters.items():
            if node.gradient.size:
                node.value = node.value * (1 - self._rate * self._decay) - self._compute_update(
                    name, node
                )

    def _compute_update(
        self, name: str, node: Variable, keep: float = 0.9, keep2: float = 0.999
    ) -> Floats:
        first, second = self._first[name], self._second[name]
        first += (1 - keep) * (node.gradient - first)
        second += (1 - keep2) * (node.gradient * node.gradient - second)
        spread = np.sqrt(second / (1 - keep2**self._steps))
        return self._rate / (1 - keep**self._steps) * first / (spread + 1e-8)


def _sum_to_shape(gradient: Floats, shape: tuple[int, ...]) -> Floats:
    """The sum over the axes along which an array of that shape was repeated."""
    if gradient.shape == shape:
        return gradient
    while gradient.ndim > len(shape):
        gradient = gradient.sum(axis=0)
    for axis, size in enumerate(shape):
        if size == 1 and gradient.shape[axis] > 1:
            gradient = gradient.sum(axis=axis, keepdims=True)
    return gradient


def _topological_order(last: Variable) -> list[Variable]:
    """Every node that `last` depends on, each before the nodes that it was computed from."""
    found = {last.creation_number: last}
    stack = [last]
    while stack:
        for parent, _ in stack.pop().parents:
            if parent.creation_number not in found:
                found[parent.creation_number] = parent
                stack.append(parent)
    return [found[age] for age in sorted(found, reverse=True)]
