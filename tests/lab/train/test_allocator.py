"""Memory that a training has freed: kept for the next step, and handed back when it only grows."""

import os
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is meant")
GROWTH = """
import torch
from batuta.lab.train.allocator import MemoryTrimmer, _resident_bytes, retain_freed_memory

assert retain_freed_memory()
began = _resident_bytes()
pieces = [torch.ones(2**18 + 999 * n) for n in range(600)]
kept, freed = pieces[::20], pieces[1::20]
del pieces, freed
fragmented = _resident_bytes() - began
memory = MemoryTrimmer(least=began + 2**27)
print(memory.trim_growth(), (_resident_bytes() - began) / fragmented < 0.3, memory.trim_growth())
print(all(bool(piece.eq(1).all()) for piece in kept))
print(MemoryTrimmer().trim_growth())
"""


def test_holes_between_what_is_kept_are_handed_back(training_line, tmp_path):
    done = training_line.run(code=GROWTH, cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True", "False", "True", "False"]
