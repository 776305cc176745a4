"""Arranges the rows of a table as arrays over questions, models and samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.lab.tasks.datasets.rows import import_arrow
from batuta.lab.tasks.recorded.outcomes import Integers


@dataclass(frozen=True, slots=True, eq=False)
class TextColumn:
    """A column of texts: each distinct text once, and a code for each row."""

    values: tuple[str, ...]
    """The distinct texts, sorted."""
    codes: NDArray[np.int32]
    """Indices into `values`; -1 if missing."""

    def texts(self) -> list[str]:
        """Return the text of each row; empty if it is missing."""
        return [self.values[code] if code >= 0 else "" for code in self.codes]

    def select(self, rows: NDArray[np.bool_]) -> TextColumn:
        """Return the column of those rows, with only the texts that occur in them."""
        present, codes = np.unique(self.codes[rows], return_inverse=True)
        values = tuple(self.values[int(code)] for code in present.tolist())
        return TextColumn(values, codes.astype(np.int32))


class ParquetTable:
    """Columns of a Parquet file."""

    def __init__(self, path: Path, keep: Sequence[tuple[str, str, Any]] | None = None) -> None:
        """Read the file.

        Args:
            path: the file.
            keep: conditions such as `("split", "==", "test")` for the rows to keep.
        """
        self._table = import_arrow("pyarrow.parquet").read_table(path, filters=keep)

    def numbers(self, column: str) -> NDArray[np.float64]:
        """Return a column of numbers; NaN where missing."""
        values = self._table.column(column).to_numpy(zero_copy_only=False)
        return np.asarray(values, np.float64)

    def names(self, *columns: str) -> TextColumn:
        """Return a column of texts; several columns are joined by a space."""
        texts = [self._table.column(column).cast("string") for column in columns]
        joined = import_arrow("pyarrow.compute").binary_join_element_wise(*texts, " ")
        coded = joined.combine_chunks().dictionary_encode()
        values: list[str] = coded.dictionary.to_pylist()
        order = sorted(range(len(values)), key=values.__getitem__)
        rank = np.full(len(values) + 1, -1, np.int32)  # the last place is for the code -1
        rank[order] = np.arange(len(values), dtype=np.int32)
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return TextColumn(tuple(values[place] for place in order), rank[codes])


class OutcomeCube:
    """The place of each row of a table in the arrays; among rows of one place the first counts."""

    def __init__(
        self, questions: TextColumn, models: TextColumn, samples: Integers | None = None
    ) -> None:
        self.questions = questions.values
        self.models = models.values
        rows = len(questions.codes)
        depth = np.zeros(rows, np.int64) if samples is None else samples.astype(np.int64)
        self._shape = (len(self.questions), len(self.models), int(depth.max(initial=0)) + 1)
        flat = np.ravel_multi_index((questions.codes, models.codes, depth), self._shape)
        self._flat, self._first = np.unique(flat, return_index=True)
        self._all = flat

    def arrange(self, values: NDArray[Any], missing: float, dtype: type[Any]) -> NDArray[Any]:
        """Return the values in their places."""
        cube = np.full(self._shape, missing, dtype)
        cube.reshape(-1)[self._flat] = np.nan_to_num(values[self._first], nan=missing)
        return cube

    def mean(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the mean of all values of each place; NaN where there is none."""
        size = int(np.prod(self._shape))
        total = np.bincount(self._all, values, size)
        count = np.bincount(self._all, minlength=size)
        cube = np.full(size, np.nan, np.float32)
        cube[count > 0] = (total[count > 0] / count[count > 0]).astype(np.float32)
        return cube.reshape(self._shape)
