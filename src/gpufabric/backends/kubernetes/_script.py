"""The shell script that starts a node of the gang: POSIX sh, and `getent` where there are several.

It stands in the pod's spec as it is. What it is given: the set-up text as `$1`, then the command.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["CODE", "RANK", "WORK", "start_script"]

RANK = "$GPUFABRIC_NODE_RANK"
WORK = "/gpufabric/work"
CODE = "/gpufabric/code"

_UNPACK = """\
unpack() {
  if command -v tar >/dev/null && command -v gzip >/dev/null; then gzip -dc "$1" | tar -xf -
  else python3 -c 'import sys, tarfile
tarfile.open(sys.argv[1]).extractall(".", filter="tar")' "$1"; fi || {
    echo "gpufabric: $1 cannot be unpacked: the image needs tar and gzip, or python3" >&2
    exit 66
  }
}
for part in workdir files; do
  if [ -e "$CODE/$part.tar.gz" ]; then unpack "$CODE/$part.tar.gz"; fi
done"""

# What is stopped is told once to the node's command; a shell that is process 1 would ignore it.
_RUN = """\
child=
stop() { stopped=1; if [ -n "$child" ]; then kill -TERM "$child" 2>/dev/null; fi; }
trap stop TERM INT
run() {
  if [ -n "$stopped" ]; then exit 143; fi
  "$@" &
  child=$!
  while :; do
    wait "$child" 2>/dev/null
    code=$?
    kill -0 "$child" 2>/dev/null || break
  done
  child=
  return "$code"
}
setup=$1
shift
if [ -n "$setup" ]; then run /bin/sh -c "$setup" || exit "$?"; fi
run "$@"
exit "$?\""""

_RESOLVE = """\
command -v getent >/dev/null || { echo "gpufabric: the image has no getent" >&2; exit 69; }
if [ "$GPUFABRIC_ATTEMPT" -gt 0 ]; then sleep @STALE@ & wait $!; fi
tries=0
rank=0
ips=
while [ "$rank" -lt "$GPUFABRIC_NUM_NODES" ]; do
  name=@HOST@-$rank.@SUBDOMAIN@
  found=$(getent hosts "$name") || found=
  if [ -n "$found" ]; then
    ips="$ips${found%% *}
"
    rank=$((rank + 1))
    continue
  fi
  tries=$((tries + 1))
  if [ "$tries" -gt @TRIES@ ]; then
    echo "gpufabric: the name $name of node $rank did not resolve in time" >&2
    exit 69
  fi
  sleep 1 & wait $!
done
ips=${ips%
}"""
_STALE_S = 31  # https://coredns.io/plugins/cache/: kubeadm's Corefile lets answers live for 30 s
_TRIES = 900


def start_script(  # noqa: PLR0913  # the facts of one gang, by keyword
    *,
    host: str,
    subdomain: str,
    num_nodes: int,
    variables: Sequence[tuple[str, str]],
    source: str | None,
    envs: Mapping[str, str],
) -> str:
    """The script of every node. `envs` are the user's, and win.

    `host` is the pods' host name without the rank.
    """
    return "\n".join(
        _lines(host, subdomain, num_nodes, variables=variables, source=source, envs=envs)
    )


def _lines(  # noqa: PLR0913  # see start_script
    host: str,
    subdomain: str,
    num_nodes: int,
    *,
    variables: Sequence[tuple[str, str]],
    source: str | None,
    envs: Mapping[str, str],
) -> Iterator[str]:
    yield "stopped="
    yield "trap 'exit 143' TERM INT"
    yield f"CODE={CODE}"
    yield 'export GPUFABRIC_NODE_RANK="${JOB_COMPLETION_INDEX:-0}"'
    yield 'export GPUFABRIC_ATTEMPT="${GPUFABRIC_ATTEMPT:-0}"'
    yield f"export GPUFABRIC_NUM_NODES={num_nodes}"
    yield f"cd {WORK} || exit 66"
    yield _UNPACK
    if num_nodes > 1:
        text = _RESOLVE.replace("@HOST@", host).replace("@SUBDOMAIN@", subdomain)
        yield text.replace("@STALE@", str(_STALE_S)).replace("@TRIES@", str(_TRIES))
    else:
        yield "ips=$GPUFABRIC_POD_IP"
    yield 'export GPUFABRIC_NODE_IPS="$ips"'
    yield "unset GPUFABRIC_POD_IP"
    if source is not None:
        path = shlex.quote(source)
        yield f'[ -r {path} ] || {{ echo "gpufabric: {source} is not there" >&2; exit 66; }}'
        yield f". {path}"
        for name, value in envs.items():
            yield f"export {name}={shlex.quote(value)}"
    for name, value in variables:
        yield f"export {name}={value if value == RANK else shlex.quote(value)}"
    yield _RUN
