"""Finds the NVIDIA GPUs of this machine, without CUDA."""

import csv
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from gpufabric._frozen import frozen

__all__ = ["Gpu", "Gpus", "find_gpus"]

_TIMEOUT_S = 10.0
_FIELDS = "index,uuid,name,memory.total,mig.mode.current"
_PROC = Path("/proc/driver/nvidia/gpus")


@frozen(kw_only=True)
class Gpu:
    """One GPU: the driver's index (PCI order), its identity, name and memory."""

    index: int
    uuid: str
    name: str
    memory_mib: float | None = None


@frozen(kw_only=True)
class Gpus:
    """What was found, what could not be seen, and whether NVLink joins all of them."""

    gpus: tuple[Gpu, ...] = ()
    nvlink: bool = False
    unseen: tuple[str, ...] = ()


def find_gpus(*, environ: Mapping[str, str], proc: Path = _PROC) -> Gpus:
    """Asks nvidia-smi, or reads the driver's files. CUDA_VISIBLE_DEVICES in `environ` limits it."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH", os.defpath))
    found = _from_smi(program, environ) if program else _from_proc(proc)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    return _limited(found, visible) if visible is not None else found


def _limited(found: Gpus, visible: str) -> Gpus:
    names = [word.strip() for word in visible.split(",") if word.strip()]
    kept = tuple(
        gpu
        for gpu in found.gpus
        if str(gpu.index) in names or any(gpu.uuid.startswith(n) for n in names if len(n) > 4)
    )
    if len(kept) == len(found.gpus):
        return found
    hidden = len(found.gpus) - len(kept)
    text = f"{hidden} GPUs are hidden by the caller's CUDA_VISIBLE_DEVICES={visible}"
    return Gpus(gpus=kept, nvlink=found.nvlink, unseen=(*found.unseen, text))


def _ask(program: str, environ: Mapping[str, str], *arguments: str) -> tuple[str, str]:
    """Gives the output and, where there is none, the fault."""
    try:
        done = subprocess.run(
            [program, *arguments],
            capture_output=True, timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
            env=dict(environ),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "", f"nvidia-smi gave no answer within {_TIMEOUT_S:g} s"
    except OSError as exc:
        return "", f"nvidia-smi: {exc.strerror}"
    out = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        said = (done.stderr.decode("utf-8", "replace").strip() or out.strip()).splitlines()
        return "", f"nvidia-smi exited with {done.returncode}: {said[0] if said else 'no message'}"
    return out, ""


def _from_smi(program: str, environ: Mapping[str, str]) -> Gpus:
    out, fault = _ask(program, environ, f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits")
    if fault:
        return Gpus(unseen=(fault,))
    gpus: list[Gpu] = []
    unseen: list[str] = []
    for row in csv.reader(out.splitlines(), skipinitialspace=True):
        if len(row) != len(_FIELDS.split(",")) or not row[0].isdecimal():
            unseen.append(f"a line of nvidia-smi that is not understood: {','.join(row)}")
            continue
        index, uuid, name, memory, mig = (word.strip() for word in row)
        if mig == "Enabled":
            unseen.append(f"GPU {index} is divided by MIG; its parts are not offered")
            continue
        mib = float(memory) if memory.replace(".", "", 1).isdecimal() else None
        gpus.append(Gpu(index=int(index), uuid=uuid, name=name, memory_mib=mib))
    return Gpus(gpus=tuple(gpus), nvlink=_has_nvlink(program, environ, gpus), unseen=tuple(unseen))


def _has_nvlink(program: str, environ: Mapping[str, str], gpus: list[Gpu]) -> bool:
    """Whether the topology matrix shows NVLink (`NV#`) between every two of the GPUs."""
    if len(gpus) < 2:
        return False
    out, fault = _ask(program, environ, "topo", "-m")
    if fault:
        return False
    from gpufabric.net import read
    from gpufabric.net.topology import path_between

    topology = read(out).topology
    return topology is not None and all(
        (path_between(topology, f"GPU{a.index}", f"GPU{b.index}") or "").startswith("NV")
        for a in gpus
        for b in gpus
        if a is not b
    )


def _from_proc(proc: Path) -> Gpus:
    try:
        folders = sorted(proc.iterdir())  # named by PCI address: the order of the indexes
    except OSError:
        return Gpus()
    gpus: list[Gpu] = []
    for index, folder in enumerate(folders):
        try:
            text = (folder / "information").read_text(encoding="utf-8")
        except OSError as exc:
            return Gpus(unseen=(f"{folder}: {exc.strerror}",))
        words = {key.strip(): value.strip() for key, _, value in
                 (line.partition(":") for line in text.splitlines())}  # fmt: skip
        gpus.append(Gpu(index=index, uuid=words.get("GPU UUID", ""), name=words.get("Model", "?")))
    return Gpus(gpus=tuple(gpus), unseen=("nvidia-smi is not here: memory and NVLink unknown",)
                if gpus else ())  # fmt: skip
