"""Attribute values of NCCL's XML files."""

from __future__ import annotations

import re

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_DECIMAL = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?")


def cpu_list(mask: str | None) -> str | None:
    """The mask "00000000,0000ffff" as "0-15", the form of taskset and nvidia-smi."""
    try:
        bits = int((mask or "").replace(",", "")[:1024], 16)
    except ValueError:
        return None
    cpus = [number for number in range(bits.bit_length()) if bits >> number & 1]
    ranges: list[list[int]] = []
    for cpu in cpus:
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(f"{low}-{high}" if low < high else f"{low}" for low, high in ranges) or None


def integer(text: str | None) -> int | None:
    """A whole number, None for anything else."""
    return int(text) if text is not None and _INTEGER.fullmatch(text.strip()) else None


def decimal(text: str | None) -> float | None:
    """A number, None for anything else."""
    return float(text) if text is not None and _DECIMAL.fullmatch(text.strip()) else None


def flag(text: str | None) -> bool | None:
    """0 or 1, None for anything else."""
    return {"0": False, "1": True}.get(text or "")
