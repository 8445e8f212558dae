"""Accelerators as users write them: `H100-80GB`, `nvidia-h100-80gb-hbm3`, `A100 SXM4`, `trainium2`.

The catalog has one spelling of a model; memory size and form are told apart from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from gpufabric.catalog.rows import Gpu

__all__ = ["Wanted", "model_key", "read_model", "spellings"]

_SAME = {"trainium": "trn1", "trainium1": "trn1", "trainium2": "trn2", "rtx6000pro": "rtxpro6000"}
_MAKERS = re.compile(r"^(nvidia|tesla|amd|instinct|aws|geforce)+")
_WORDS = re.compile(
    r"(?P<gb>\d{2,3})g(?:i?b)?|(?P<form>sxm|pcie|nvlink|nvl(?!72)|oam)(?:[2-6](?!\d?g))?|hbm\de?|nvl72|superchip"
    r"|blackwell|server|edition|\d+u?x"
)
_NEAR_SIZE = 0.08
"""The same product is sold as 270, 279 and 288 GB; 80 and 94 GB are two products."""


class Wanted(NamedTuple):
    """A model with what was said of its memory and form."""

    model: str
    gb: int | None = None
    form: str | None = None

    def fits(self, gpu: Gpu) -> bool:
        """Says whether these GPUs are what was written."""
        if gpu.model != self.model:
            return False
        if self.form is not None and gpu.form not in (None, self.form):
            return False
        return self.gb is None or _same_size(self.gb, gpu)


def _same_size(gb: float, gpu: Gpu) -> bool:
    sizes = [size for size in (gpu.label_gb, gpu.memory_gib_each) if size is not None]
    return any(abs(size - gb) <= _NEAR_SIZE * gb for size in sizes)


def model_key(model: str) -> str:
    """A spelling without case, blanks and signs: `RTX PRO 6000` and `rtx-pro-6000` are one."""
    return re.sub(r"[^a-z0-9+]", "", model.lower())


def spellings(models: Iterable[str]) -> dict[str, str]:
    """Models by their spelling without case and signs, other names of the same included."""
    known = {model_key(model): model for model in models}
    known.update({same: known[model] for same, model in _SAME.items() if model in known})
    return known


def read_model(text: str, known: Mapping[str, str]) -> Wanted | None:
    """What a user's word means among these `spellings`; None where it means none of them."""
    for start, gb, form in _readings(text):
        if start in known:
            return Wanted(model=known[start], gb=gb, form=form)
    return None


@lru_cache(maxsize=256)
def _readings(text: str) -> tuple[tuple[str, int | None, str | None], ...]:
    """Every way to read a word as a model, a memory size and a form, the longest model first."""
    key = _MAKERS.sub("", model_key(text))
    found: list[tuple[str, int | None, str | None]] = []
    for end in range(len(key), 0, -1):
        said = _qualifiers(key[end:])
        if said is not None:
            found.append((key[:end], *said))
    return tuple(found)


def _qualifiers(rest: str) -> tuple[int | None, str | None] | None:
    gb: int | None = None
    form: str | None = None
    while rest:
        match = _WORDS.match(rest)
        if match is None:
            return None
        if match["gb"]:
            gb = int(match["gb"])
        if match["form"]:
            form = {"sxm": "SXM", "nvlink": "SXM", "pcie": "PCIe", "nvl": "NVL", "oam": "OAM"}[
                match["form"]
            ]
        rest = rest[match.end() :]
    return gb, form
