"""All that can be made before the cluster starts, by version: programs, manifests, image."""

import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import image
from .layout import APT_PACKAGES, HERE, KUBERNETES_VERSION, alone, cache_folder
from .shell import ClusterError, run, say

_MAJOR, _MINOR = KUBERNETES_VERSION.removeprefix("v").split(".")[:2]


def _stamp() -> str:
    """Linker flags that tell Kubernetes' programs their version; without them they say v0.0.0."""
    values = {"gitVersion": KUBERNETES_VERSION, "gitMajor": _MAJOR, "gitMinor": _MINOR}
    return " ".join(
        f"-X {package}.{name}={value}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for name, value in values.items()
    )


@dataclass(frozen=True, kw_only=True)
class Module:
    """One go.mod of ours, and the programs that are built from it."""

    name: str
    programs: dict[str, str]  # name of the program → Go package
    flags: str = "-s -w"
    static: bool = True  # it runs in a bare root folder, where there is no C library
    manifests: str | None = None  # module whose config/default has the objects to be created

    @property
    def source(self) -> Path:
        """The folder with go.mod and go.sum."""
        return HERE / "go" / self.name

    @property
    def folder(self) -> Path:
        """Where the programs of exactly this version lie, or will."""
        digest = hashlib.sha256(
            f"{sorted(self.programs.items())} {self.flags} {self.static}".encode()
        )
        for name in ("go.mod", "go.sum"):
            digest.update((self.source / name).read_bytes())
        return cache_folder() / f"{self.name}-{digest.hexdigest()[:12]}"


_KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")

MODULES = {
    module.name: module
    for module in (
        Module(
            name="kubernetes",
            programs={name: f"k8s.io/kubernetes/cmd/{name}" for name in _KUBERNETES},
            flags=f"-s -w {_stamp()}",
            static=False,  # kubelet looks up users and names as this machine does
        ),
        Module(name="coredns", programs={"coredns": "github.com/coredns/coredns"}),
        Module(
            name="jobset",
            programs={"jobset": "sigs.k8s.io/jobset"},
            manifests="sigs.k8s.io/jobset",
        ),
        Module(
            name="kueue",
            programs={"kueue": "sigs.k8s.io/kueue/cmd/kueue"},
            manifests="sigs.k8s.io/kueue",
        ),
        Module(name="lws", programs={"lws": "sigs.k8s.io/lws/cmd"}, manifests="sigs.k8s.io/lws"),
    )
}


def program(name: str) -> Path:
    """A program that `build` has made."""
    for module in MODULES.values():
        if name in module.programs:
            path = module.folder / name
            if not path.exists():
                raise ClusterError(f"{name} is not built yet; run: cluster.py build")
            return path
    raise ClusterError(f"no program {name!r}")


def manifests(addon: str) -> list[dict[str, Any]]:
    """The objects that an add-on's own installation creates."""
    items: list[dict[str, Any]] = json.loads((MODULES[addon].folder / "manifests.json").read_text())
    return items


def missing() -> list[str]:
    """What `build` would have to make."""
    found = [module.name for module in MODULES.values() if not module.folder.exists()]
    return found if image.path().exists() else [*found, "image"]


def build() -> None:
    """Make all that is missing. What a build that was ended had compiled is not compiled again."""
    with alone():
        packages()
        wanted = [module for module in MODULES.values() if not module.folder.exists()]
        for module in MODULES.values():
            if module not in wanted:
                say(f"{module.name}: built before")
        if wanted:
            _require_go(wanted)
            with ThreadPoolExecutor() as pool:  # sources arrive while others are compiled
                arriving = {module.name: pool.submit(_download, module) for module in wanted}
                for module in wanted:
                    arriving[module.name].result()
                    _build(module)
        image.build()


def cannot() -> str:
    """Why this machine cannot have the cluster, in words; empty where it can."""
    if os.geteuid() != 0:
        return "this is not root, and the cluster makes network namespaces and containers"
    lacking = [module.name for module in MODULES.values() if not module.folder.exists()]
    if lacking and not shutil.which("go"):
        return f"there is no Go to build {', '.join(lacking)}, and {cache_folder()} has none of it"
    return ""


def packages() -> None:
    """Install the Debian packages that are missing; needs root for that."""
    absent = sorted({pkg for path, pkg in APT_PACKAGES.items() if not Path(path).exists()})
    if not absent:
        return
    if os.geteuid() != 0:
        raise ClusterError(f"missing Debian packages, and only root can install: {absent}")
    if not shutil.which("apt-get"):
        raise ClusterError(f"not a Debian system; the cluster needs: {sorted(APT_PACKAGES)}")
    say(f"installing {' '.join(absent)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-qq"], env=env, timeout_s=300)
    run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *absent],
        env=env,
        timeout_s=600,
    )


def _go_environment(module: Module) -> dict[str, str]:
    env = {**os.environ, "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    return {**env, "CGO_ENABLED": "0"} if module.static else env


def _require_go(wanted: Sequence[Module]) -> None:
    if not shutil.which("go"):
        raise ClusterError(
            f"no Go compiler on PATH, and {', '.join(m.name for m in wanted)} is not built yet."
            " Install Go 1.26 or newer, or set GPUFABRIC_CLUSTER_CACHE to a folder that another"
            " machine built"
        )


def _download(module: Module) -> None:
    """The sources of a module and of all that it needs; the registry may fail now and then."""
    for tries in range(3, 0, -1):
        try:
            run(["go", "list", "-deps", "-f", "", *module.programs.values()], cwd=module.source,
                env=_go_environment(module), timeout_s=900)  # fmt: skip
        except ClusterError:
            if tries == 1:
                raise
        else:
            return


def _build(module: Module) -> None:
    started = time.monotonic()
    say(f"{module.name}: building; the first time takes minutes")
    partial = module.folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    flags = ["-trimpath", "-buildvcs=false", "-ldflags", module.flags]
    for outputs, packages in _commands(module, partial):
        done = subprocess.run(
            ["nice", "-n", "10", "go", "build", *flags, "-o", outputs, *packages],
            cwd=module.source,
            env=_go_environment(module),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = done.stderr[-4000:]
            raise ClusterError(f"go build {' '.join(packages)} failed:\n{said}")
    if module.manifests:
        text = json.dumps(list(_render(module)))
        (partial / "manifests.json").write_text(text)
    partial.rename(module.folder)
    say(f"{module.name}: built in {time.monotonic() - started:.0f} s")


def _commands(module: Module, partial: Path) -> Iterator[tuple[str, list[str]]]:
    """What `go build` is told: all programs at once where each is named as its package is."""
    together = [
        package for name, package in module.programs.items() if package.endswith(f"/{name}")
    ]
    if len(together) > 1:
        yield f"{partial}/", together
    for name, package in module.programs.items():
        if len(together) <= 1 or package not in together:
            yield str(partial / name), [package]


def _render(module: Module) -> Iterator[dict[str, Any]]:
    """The add-on's own kustomization as JSON objects. kubectl does both steps, without a server."""
    where = run(
        ["go", "list", "-m", "-f", "{{.Dir}}", str(module.manifests)],
        cwd=module.source,
        env=_go_environment(module),
    ).strip()
    kubectl = program("kubectl")
    yaml = run([kubectl, "kustomize", Path(where) / "config" / "default"])
    text = run(
        [kubectl, "label", "--local", "-o", "json", "-f", "-", "gpufabric.test/cluster=1"],
        stdin=yaml,
    )
    decoder = json.JSONDecoder()
    while text := text.lstrip():
        item, end = decoder.raw_decode(text)
        text = text[end:]
        yield from item["items"] if item["kind"] == "List" else [item]


def check_built() -> None:
    """Raise if something is not built."""
    if lacking := missing():
        raise ClusterError(f"not built yet: {', '.join(lacking)}; run: cluster.py build")
