"""ssh into nodes: an OpenSSH configuration whose connections are `exec`, with sshd at their end."""

import contextlib
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpufabric._live import exec_on
from gpufabric.backends.base import Command, Live
from gpufabric.errors import BackendError, Problem, Remedy, SpecError
from gpufabric.job import JobRef

__all__ = ["carry", "carry_ssh", "config_text", "read_key", "remote_user"]

_KEY = re.compile(r"(ssh-|ecdsa-|sk-)[\w@.-]+ [A-Za-z0-9+/=]{20,}( [^\r\n]*)?")
_KEYS = ("id_ed25519.pub", "id_ecdsa.pub", "id_rsa.pub")
_CHUNK = 1 << 16
_LAST_S = 5.0  # for what a command has said on standard error when it has ended
_FIND = """\
PATH=$PATH:/usr/sbin:/usr/local/sbin:/sbin
for tool in sshd ssh-keygen; do
  command -v $tool >/dev/null || { echo "the image has no $tool: ssh needs openssh-server in it\
 (exec, cp and port_forward do not)" >&2; exit 69; }
done
"""
_WHO = """\
id -un 2>/dev/null || { echo "the image has no user of number $(id -u) in /etc/passwd, which sshd\
 needs" >&2; exit 69; }"""
#: What a session runs: the environment and folder of the job, then what was asked for.
_ENTER = """\
cd "$1" || exit 69
if [ -z "$GPUFABRIC_ENTERED" ] && ! command -v python3 >/dev/null; then
  echo "gpufabric: the image has no python3, so this session lacks the job's environment" >&2
elif [ -z "$GPUFABRIC_ENTERED" ]; then
  exec python3 -c 'import os, sys
with open("/proc/%s/environ" % sys.argv[1], "rb") as file:
    env = dict(pair.split(b"=", 1) for pair in file.read().split(b"\\0") if b"=" in pair)
own = ("TERM", "HOME", "USER", "LOGNAME", "SHELL", "LANG")
env.update((name, value) for name, value in os.environb.items()
           if name.decode() in own or name.startswith((b"SSH_", b"LC_")))
env[b"GPUFABRIC_ENTERED"] = b"1"
os.execve("/bin/sh", ["sh", *sys.argv[2:]], env)' "$2" "$0" "$1" "$2"
fi
unset GPUFABRIC_ENTERED
if [ -n "$SSH_ORIGINAL_COMMAND" ]; then exec "${SHELL:-/bin/sh}" -c "$SSH_ORIGINAL_COMMAND"; fi
exec "${SHELL:-/bin/sh}"
"""
#: One sshd for one connection, on its standard input. It stays this shell's child: sessions take
#: the job's environment from this process, so that no file holds it.
_SERVE = """\
set -e
umask 077
home=$PWD/.gpufabric-ssh
mkdir -p "$home"
if [ ! -f "$home/host" ]; then
  ssh-keygen -q -t ed25519 -N "" -C gpufabric -f "$home/new.$$"
  mv "$home/new.$$" "$home/host"
  rm -f "$home/new.$$.pub"
fi
touch "$home/keys"
while read -r key; do if [ "$key" = "$1" ]; then break; fi; done <"$home/keys"
if [ "$key" != "$1" ]; then printf '%s\\n' "$1" >>"$home/keys"; fi
printf '%s' "$2" >"$home/enter.$$"
mv "$home/enter.$$" "$home/enter"
sftp=
for path in /usr/lib/openssh /usr/libexec/openssh /usr/lib/ssh /usr/libexec /usr/lib/misc; do
  if [ -x "$path/sftp-server" ]; then sftp=$path/sftp-server; break; fi
done
if [ "$(id -u)" = 0 ]; then (umask 022; mkdir -p /run/sshd); fi
set +e
"$(command -v sshd)" -i -e -f /dev/null -h "$home/host" \\
  -o "AuthorizedKeysFile=\\"$home/keys\\"" -o "ForceCommand=/bin/sh '$home/enter' '$PWD' $$" \\
  ${sftp:+-o} ${sftp:+"Subsystem=sftp $sftp"} -o LogLevel=ERROR -o PidFile=none -o UsePAM=no \\
  -o StrictModes=no -o PermitRootLogin=prohibit-password -o PasswordAuthentication=no \\
  -o KbdInteractiveAuthentication=no -o PrintMotd=no
exit $?
"""


def read_key(given: str | os.PathLike[str] | None) -> tuple[str, Path | None]:
    """A public key's text, and its file where it has one: what is given, or the user's own.

    Raises `SpecError` for what is no public key, and never shows it.
    """
    if isinstance(given, str) and _KEY.fullmatch(given.strip()):
        return given.strip(), None
    if given is None:
        found = [path for name in _KEYS if (path := Path("~/.ssh").expanduser() / name).is_file()]
        if not found:
            raise _bad(f"there is no key in ~/.ssh ({', '.join(_KEYS)}): ssh-keygen -t ed25519"
                       " makes one, or give public_key=")  # fmt: skip
        path = found[0]
    else:
        path = Path(given).expanduser()
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        told = "that is given" if "\n" in str(path) or " " in str(path) else str(path)
        raise _bad(f"{told} is neither a public key nor a file with one") from None
    if "PRIVATE KEY" in text:
        raise _bad(f"{path} is a private key; the public one is {path}.pub")
    if not _KEY.fullmatch(text):
        raise _bad(f"{path} has no public key of OpenSSH in one line")
    return text, path


def _bad(words: str) -> SpecError:
    return SpecError([Problem(path="public_key", message=words)])


def remote_user(live: Live, ref: JobRef, node_rank: int) -> str:
    """Who one is on the node. Raises `BackendError` where ssh cannot work there, with why."""
    found = exec_on(live, ref, _FIND + _WHO, node_rank=node_rank)
    if found.exit_code != 0:
        raise BackendError(
            f"node {node_rank} of {ref}: {found.stderr.decode('utf-8', 'replace').strip()}",
            backend=ref.backend, operation="ssh", remedy=Remedy.FIX_SETUP,
        )  # fmt: skip
    return found.text.strip()


def config_text(  # noqa: PLR0913  # the facts of one configuration, by keyword
    ref: JobRef,
    *,
    ranks: Sequence[int],
    user: str,
    key: str,
    key_file: Path | None,
    env: Mapping[str, str],
) -> str:
    """The hosts `NAME-RANK`, for ~/.ssh/config or `ssh -F`."""
    lines = [f"# {ref}, by gpufabric. exec leads to the node as the cluster's user, so a host key,",
             "# which every pod makes anew, would prove nothing more."]  # fmt: skip
    private = key_file.with_suffix("") if key_file is not None else None
    for rank in ranks:
        words = [sys.executable, "-m", "gpufabric", "connect", str(ref), str(rank), "--key", key]
        if env:
            words = ["env", *(f"{name}={value}" for name, value in env.items()), *words]
        lines += [
            f"Host {ref.name}-{rank}",
            f"  User {user}",
            f"  ProxyCommand {shlex.join(words).replace('%', '%%')}",
            "  StrictHostKeyChecking no",
            "  UserKnownHostsFile /dev/null",
            "  LogLevel ERROR",
        ]
        if private is not None and private.is_file():
            lines += [f'  IdentityFile "{private}"', "  IdentitiesOnly yes"]
    return "\n".join(lines) + "\n"


def carry_ssh(live: Live, ref: JobRef, *, node_rank: int, key: str) -> int:
    """Joins this process's standard streams with an sshd on the node, to its end."""
    words = ["/bin/sh", "-c", _FIND + _SERVE, "gpufabric", key, _ENTER]
    return carry(live.exec(ref, words, node_rank=node_rank, stdin=True))


def carry(running: Command) -> int:
    """Joins this process's standard streams with a command's; gives its exit code.

    Where nobody reads its output any more, as behind `head`, it is ended.
    """
    errors = threading.Thread(target=_copy, args=(running.stderr.fileno(), 2), daemon=True)
    try:
        threading.Thread(target=_send, args=(running,), daemon=True).start()
        errors.start()
        if not _copy(running.stdout.fileno(), 1):
            return 128 + signal.SIGPIPE
        code = running.wait()
        errors.join(_LAST_S)
        return code
    finally:
        running.close()


def _send(running: Command) -> None:
    _copy(0, running.stdin.fileno())
    with contextlib.suppress(OSError):
        running.stdin.close()


def _copy(source: int, target: int) -> bool:
    """Carries all that comes; whether it was taken to its end."""
    try:
        while data := os.read(source, _CHUNK):
            while data:
                data = data[os.write(target, data) :]
    except OSError:
        return False
    return True
