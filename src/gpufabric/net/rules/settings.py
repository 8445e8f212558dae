"""Rules: shared memory, namespaces and settings on the hosts of a job."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final

from gpufabric.net.diagnosis import Severity
from gpufabric.net.records import Evidence, NetError
from gpufabric.net.rules._names import KNOWN, OTHERS
from gpufabric.net.rules.case import Case, evidence_of, version_of
from gpufabric.net.rules.rule import Match, Rule, fires

_IMAGES_OWN: Final = frozenset({"NCCL_VERSION", "NCCL_HOME", "NCCL_ROOT", "NCCL_DIR", "NCCL_LIB"})
_NATIVE_SINCE: Final = (
    (r"\b(?:GB200|GB300|B200|B300)\b", (12, 8)),
    (r"\b(?:GH200|H100|H200|H800|H20)\b", (11, 8)),
)
"""The CUDA that first compiles for a GPU, from NVIDIA's compatibility guides of each."""
_TROUBLE: Final = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_ENV_GUIDE: Final = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_SHM: Final = "/dev/shm"  # noqa: S108 - the folder that the rule is about


def _shm(case: Case) -> Iterable[Match]:
    full = [
        e
        for e in case.errors("shm_extend_failed", "shm_create_failed", "shm_attach_failed")
        if e.errno in {None, 12, 28} and not (e.kind == "shm_attach_failed" and e.errno is None)
    ]
    if full:
        return fires(*evidence_of(full))
    size = case.fact("shm_bytes")
    if isinstance(size, int) and size <= 64 * 2**20:
        line = case.fact_evidence("shm_bytes", f"{_SHM}: {size} bytes")
        return fires(line, severity=Severity.NOTE if case.shown_to_work else Severity.WARNING)
    return ()


def _ipc(case: Case) -> Iterable[Match]:
    gone = [e for e in case.errors("shm_attach_failed") if e.errno == 2]
    texts = ("abstract socket", "ncclIpcSocket", "UDS socket", "cuMemImportFromShareableHandle")
    marks = [m for m in case.marks("unknown_warning") if any(t in m.first.text for t in texts)]
    return fires(*evidence_of([*gone, *marks])) if gone or marks else ()


def _p2p(case: Case) -> Iterable[Match]:
    if not case.gdr_could_be:
        return ()  # GeForce-class GPUs have no P2P to lose
    names = [n for n in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE") if case.env.get(n) == "1"]
    if not names:
        return ()
    # GPUs without NVLink lose little by it, and some platforms ask for it.
    plain = case.gpu is not None and not case.is_datacenter_gpu
    severity = Severity.NOTE if plain else None
    return fires(*map(case.env_evidence, names), about=" and ".join(names), severity=severity)


def _misspelled(case: Case) -> Iterable[Match]:
    found: list[Evidence] = []
    told: list[str] = []
    for name in case.launch_env:
        if name in KNOWN or name in _IMAGES_OWN or name.startswith(OTHERS):
            continue
        if not name.startswith("NCCL_"):
            continue
        close = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.8)
        if close and _distance(name, close[0]) <= 2:
            found.append(case.env_evidence(name))
            told.append(f"{name} should be {close[0]}")
    return fires(*found, about="; ".join(told)) if found else ()


def _distance(one: str, other: str) -> int:
    """Letters to add, drop or change (Levenshtein)."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, another in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != another))
    return row[-1]


def _conf(case: Case) -> Iterable[Match]:
    files = case.detail("nccl_conf")
    if files:
        lines = [
            Evidence(at if isinstance(at := facts.get("lineno"), int) else 0, path)
            for path, facts in files.items()
        ]
        return fires(*lines, about=", ".join(files))
    return fires(case.env_evidence("NCCL_CONF_FILE")) if "NCCL_CONF_FILE" in case.env else ()


def _gpu_too_new(case: Case) -> Iterable[Match]:
    errors = list(case.errors("shared_memory_limit"))
    errors += [e for e in case.errors("cuda_failure") if "no kernel image" in (e.text or "")]
    if errors:
        return fires(*evidence_of(errors))
    build = version_of(case.report.header.cuda_build)
    needed = next((v for name, v in _NATIVE_SINCE if re.search(name, case.gpu or "")), None)
    if build is None or needed is None or build[:2] >= needed:
        return ()
    built = ".".join(map(str, build))
    about = f"NCCL built with CUDA {built}, {case.gpu} needs {needed[0]}.{needed[1]}"
    line = Evidence(0, f"CUDA {built} and {case.gpu}")
    # Code of an older GPU may still be translated when it is loaded: slow to start, and it works.
    return fires(line, about=about, severity=Severity.NOTE if case.shown_to_work else None)


def _memlock(case: Case) -> Iterable[Match]:
    errors = [e for e in case.errors("memory_registration_failed") if _no_memory(e)]
    locked = case.fact("memlock_bytes")
    resources = [e for e in case.errors("verbs_resource_failed") if e.errno == 12]
    if resources and locked != "unlimited":
        errors += resources
    if errors:
        return fires(*evidence_of(errors))
    if isinstance(locked, int) and locked < 2**30:
        text = f"max locked memory: {locked} bytes"
        # The shell's limit is not always the job's.
        severity = Severity.NOTE if case.shown_to_work else Severity.ERROR
        return fires(case.fact_evidence("memlock_bytes", text), severity=severity)
    return ()


def _no_memory(error: NetError) -> bool:
    """ENOMEM, as errno, as libfabric's result, or not told at all."""
    result = error.values.get("result")
    return error.errno == 12 or result == "-12" or (error.errno is None and result is None)


RULES: Final = (
    Rule(
        id="memlock",
        title="too little memory may be locked",
        severity=Severity.CRITICAL,
        cause="The limit of locked memory of the daemon that starts the job is too small to"
        " register buffers for RDMA.",
        remedy="Set memlock to unlimited for slurmd, sshd or containerd (LimitMEMLOCK=infinity in"
        " the unit, or `docker run --ulimit memlock=-1`), restart it, and check with `ulimit -l`"
        " inside the job. A pod also needs the IPC_LOCK capability.",
        sources=(_TROUBLE, "https://github.com/NVIDIA/nccl-tests/issues/206"),
        when=_memlock,
    ),
    Rule(
        id="shm_too_small",
        title=f"{_SHM} is too small",
        severity=Severity.CRITICAL,
        cause="NCCL's shared-memory segments do not fit into /dev/shm; containers get 64 MiB unless"
        " told otherwise.",
        remedy="Give the container more: `docker run --shm-size=16g` or `--ipc=host`; on Kubernetes"
        " mount an emptyDir with `medium: Memory` at /dev/shm. NCCL 2.24 and later can do without"
        " (NCCL_CUMEM_HOST_ENABLE=1).",
        sources=(
            "https://github.com/NVIDIA/nccl-tests/issues/166",
            "https://github.com/NVIDIA/nccl/issues/290",
            "https://github.com/NVIDIA/nccl/issues/342",
        ),
        when=_shm,
    ),
    Rule(
        id="ipc_namespace",
        title="containers of one node cannot share memory handles",
        severity=Severity.WARNING,
        cause="Processes on one machine are in different IPC or network namespaces, so shared"
        " memory and abstract sockets of one are not visible to the other.",
        remedy="Run all ranks of a node in one pod, or set hostIPC and hostPID; try"
        " NCCL_IPC_USE_ABSTRACT_SOCKET=0 with a shared /tmp.",
        sources=(_ENV_GUIDE, "https://github.com/NVIDIA/nccl/issues/2379"),
        when=_ipc,
    ),
    Rule(
        id="nccl_version_lacks_gpu_fix",
        title="NCCL is too old for this GPU",
        severity=Severity.ERROR,
        cause="This NCCL (or the CUDA it was built with) does not know this GPU.",
        remedy="Use an image with a newer CUDA and NCCL; `nvidia-smi --query-gpu=name,compute_cap"
        " --format=csv` tells what must be supported.",
        sources=(
            "https://github.com/NVIDIA/nccl-tests/issues/287",
            "https://docs.nvidia.com/cuda/blackwell-compatibility-guide/",
            "https://docs.nvidia.com/cuda/hopper-compatibility-guide/",
        ),
        when=_gpu_too_new,
    ),
    Rule(
        id="p2p_disabled_by_env",
        title="P2P or shared memory is switched off by a variable",
        severity=Severity.WARNING,
        cause="NCCL_P2P_DISABLE or NCCL_SHM_DISABLE is set, often left from a search for another"
        " fault; traffic inside the node takes a slow way.",
        remedy="Run `unset NCCL_P2P_DISABLE NCCL_SHM_DISABLE` unless the platform's documents ask"
        " for them.",
        sources=(_ENV_GUIDE,),
        when=_p2p,
    ),
    Rule(
        id="misspelled_variable",
        title="a variable's name is misspelled",
        severity=Severity.WARNING,
        cause="NCCL ignores names that it does not know without a word, so the setting has no"
        " effect.",
        remedy="Correct the name, and look for `set by environment` in the log: NCCL prints each"
        " variable that it takes.",
        sources=("https://github.com/NVIDIA/nccl-tests/issues/185",),
        when=_misspelled,
    ),
    Rule(
        id="hidden_conf_file",
        title="settings come from a file",
        severity=Severity.NOTE,
        cause="NCCL also reads /etc/nccl.conf and ~/.nccl.conf (or NCCL_CONF_FILE), which images"
        " bring along.",
        remedy="Read it (`cat /etc/nccl.conf`) and remove what does not belong to this machine; the"
        " environment wins over it.",
        sources=(_ENV_GUIDE, "https://github.com/luxingcom/aicad-nccl-optimization/issues/1"),
        when=_conf,
    ),
)
