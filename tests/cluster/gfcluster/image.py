"""A container image out of this machine's own Debian packages: no registry is needed.

The archive has one layer and two names: one for jobs, and one for the pause container.
"""

import hashlib
import io
import json
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path

from .layout import IMAGE_PACKAGES, JOB_IMAGE, PAUSE_IMAGE, cache_folder
from .shell import ClusterError, run, say

_PASSWD = "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000:user:/home/user:/bin/bash\n"
_FILES = {
    "etc/passwd": _PASSWD + "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_LINKS = {
    "bin": "usr/bin",
    "sbin": "usr/sbin",
    "lib": "usr/lib",
    "lib64": "usr/lib64",
    "usr/bin/awk": "mawk",
}
_FOLDERS = {"tmp": 0o1777, "root": 0o700, "home/user": 0o755, "var/tmp": 0o1777, "run": 0o755}
_USELESS = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/info/")


def _packages() -> dict[str, str]:
    """Every package that the image has, with its version: those named, and what they depend on."""
    listing = run(
        ["dpkg-query", "-W", "-f", "${Package}\t${Version}\t${Pre-Depends}, ${Depends}\n"]
    )
    installed: dict[str, tuple[str, list[str]]] = {}
    for line in listing.splitlines():
        name, version, depends = line.split("\t")
        wanted = [word.split()[0].split(":")[0] for word in depends.split(",") if word.strip()]
        installed[name] = (version, wanted)  # the first of alternatives is what Debian installs
    absent = [name for name in IMAGE_PACKAGES if name not in installed]
    if absent:
        raise ClusterError(f"the job image needs these Debian packages on this machine: {absent}")
    found: dict[str, str] = {}
    waiting = list(IMAGE_PACKAGES)
    while waiting:
        name = waiting.pop()
        if name in installed and name not in found:
            version, wanted = installed[name]
            found[name] = version
            waiting += wanted
    return dict(sorted(found.items()))


def path() -> Path:
    """Where the archive of exactly these packages lies, or will."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    digest.update(json.dumps([_packages(), JOB_IMAGE, PAUSE_IMAGE]).encode())
    return cache_folder() / f"image-{digest.hexdigest()[:12]}.tar"


def _add(layer: tarfile.TarFile, name: str, *, mode: int, kind: bytes, link: str = "",
         data: bytes = b"") -> None:  # fmt: skip
    row = tarfile.TarInfo(name)
    row.mode, row.type, row.linkname, row.size = mode, kind, link, len(data)
    layer.addfile(row, io.BytesIO(data))


def _layer(files: Iterable[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as layer:
        for name, mode in _FOLDERS.items():
            _add(layer, name, mode=mode, kind=tarfile.DIRTYPE)
        for name, target in _LINKS.items():
            _add(layer, name, mode=0o777, kind=tarfile.SYMTYPE, link=target)
        for name, text in _FILES.items():
            _add(layer, name, mode=0o644, kind=tarfile.REGTYPE, data=text.encode())
        for name in sorted(set(files)):
            _add_file(layer, Path(name))
    return buffer.getvalue()


def _add_file(layer: tarfile.TarFile, path: Path) -> None:
    # /bin is a link to /usr/bin, and packages name files either way: one place for each file.
    real = path.parent.resolve() / path.name
    name = str(real).lstrip("/")
    if name in _FILES or name in _LINKS or name in _FOLDERS:
        return
    if real.is_symlink():
        _add(layer, name, mode=0o777, kind=tarfile.SYMTYPE, link=str(real.readlink()))
    elif real.is_file():
        mode = real.stat().st_mode & 0o7777
        _add(layer, name, mode=mode, kind=tarfile.REGTYPE, data=real.read_bytes())
    elif real.is_dir():
        _add(layer, name, mode=0o755, kind=tarfile.DIRTYPE)


def build() -> None:
    """Write the archive, unless it is there."""
    target = path()
    if target.exists():
        say("image: built before")
        return
    started = time.monotonic()
    listed = run(["dpkg-query", "-L", *_packages()]).splitlines()
    wanted = [name for name in listed if name.startswith("/") and not name.startswith(_USELESS)]
    layer = _layer(name for name in wanted if name != "/.")
    config = json.dumps(
        {
            "architecture": _architecture(),
            "os": "linux",
            "config": {
                "Env": ["PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin"],
                "Cmd": ["/usr/bin/sleep", "infinity"],
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_sha256(layer)}"]},
            "history": [{"created_by": "gpufabric test cluster"}],
        }
    ).encode()
    manifest = [
        {"Config": "config.json", "RepoTags": [JOB_IMAGE, PAUSE_IMAGE], "Layers": ["layer.tar"]}
    ]
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    with tarfile.open(partial, "w") as archive:
        for name, data in (
            ("layer.tar", layer),
            ("config.json", config),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            _add(archive, name, mode=0o644, kind=tarfile.REGTYPE, data=data)
    partial.rename(target)
    size_mib = target.stat().st_size / 2**20
    say(f"image: {size_mib:.0f} MiB in {time.monotonic() - started:.0f} s")


def _architecture() -> str:
    return run(["dpkg", "--print-architecture"]).strip()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
