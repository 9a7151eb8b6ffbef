"""Texts as vectors: words hashed into 64 dimensions. Pure. A real one would ask a model for embeddings."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from hashlib import blake2b
from math import sqrt

SIZE = 64
_FORMAT = struct.Struct(f"<{SIZE}f")
_WORD = re.compile(r"\w+")


def vector_of(text: str) -> tuple[float, ...]:
    """Return the direction of a text: a vector of length 1, or of zeros if it has no words."""
    values = [0.0] * SIZE
    for word in _WORD.findall(text.lower()):
        digest = blake2b(word[:5].encode(), digest_size=2).digest()  # "owl" is near "owls"
        values[digest[0] % SIZE] += 1.0 if digest[1] % 2 else -1.0
    length = sqrt(sum(value * value for value in values))
    return tuple(value / length for value in values) if length else tuple(values)


def packed(vector: Sequence[float]) -> bytes:
    """Return a vector as it is stored."""
    return _FORMAT.pack(*vector)


def unpacked(stored: bytes) -> tuple[float, ...]:
    return _FORMAT.unpack(stored)


def likeness(one: Sequence[float], other: Sequence[float]) -> float:
    """Return how much two vectors point the same way, from -1 to 1."""
    return sum(a * b for a, b in zip(one, other, strict=True))
