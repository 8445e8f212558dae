"""The shell script that starts a node of the gang: POSIX sh, and few programs beside it.

Where there are several nodes, `getent` or `python3`, and only with the second they meet before the
command starts; where code travels, `sha256sum`, `gzip` and `tar`, or `python3`. It stands in the
pod's spec as it is. What it is given: the set-up text as `$1`, then the command; and in
GPUFABRIC_CODE the hash and the name of each part of the code. It writes nowhere but below
/gpufabric, so that the image's own files may be read-only.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from gpufabric.backends.kubernetes._meeting import MEET, PORT

__all__ = ["CODE", "ENV", "FETCHED", "RANK", "WORK", "start_script"]

RANK = "$GPUFABRIC_NODE_RANK"
WORK = "/gpufabric/work"
CODE = "/gpufabric/code"
FETCHED = "/gpufabric/fetched"
ENV = f"{WORK}/.gpufabric-env"

_CODE = """\
refuse() { echo "gpufabric: $1" >&2; exit 66; }
if [ -e "$CODE/address" ]; then
  command -v python3 >/dev/null || refuse "code above 900 kB needs python3 in the image"
  python3 -c '@FETCH@' "$CODE" "@FETCHED@" "@SECONDS@" $GPUFABRIC_CODE & wait $! || exit 66
  CODE=@FETCHED@
fi
hash_of() {
  if command -v sha256sum >/dev/null && command -v gzip >/dev/null; then
    case $1 in
      *.gz) gzip -dc <"$1" | sha256sum ;;
      *) sha256sum <"$1" ;;
    esac
  else python3 -c '@HASH@' "$1"; fi
}
unpack() {
  if command -v tar >/dev/null && command -v gzip >/dev/null; then gzip -dc <"$1" | tar -xf -
  else python3 -c '@UNPACK@' "$1"; fi
}
command -v python3 >/dev/null || {
  for tool in sha256sum gzip tar; do
    command -v $tool >/dev/null || refuse "the image has neither $tool nor python3, one of which\
 checks and unpacks the code"
  done
}
hash=
for word in $GPUFABRIC_CODE; do
  if [ -z "$hash" ]; then hash=$word; continue; fi
  [ -r "$CODE/$word" ] || refuse "$CODE/$word is not there"
  found=$(hash_of "$CODE/$word")
  [ "${found%% *}" = "$hash" ] || refuse "$word is not what was launched: its hash is\
 ${found%% *}, not $hash. Nothing of it was unpacked"
  hash=
done
for part in workdir files; do
  [ -e "$CODE/$part.tar.gz" ] || continue
  unpack "$CODE/$part.tar.gz" || refuse "$part.tar.gz cannot be unpacked here"
  if [ "$CODE" = @FETCHED@ ]; then rm -f "$CODE/$part.tar.gz"; fi
done"""
_HASH = """\
import gzip, hashlib, sys
path, hash = sys.argv[1], hashlib.sha256()
with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
    for chunk in iter(lambda: file.read(1 << 20), b""):
        hash.update(chunk)
print(hash.hexdigest())"""
_UNPACK = """\
import sys, tarfile
with tarfile.open(sys.argv[1]) as tar:
    tar.extractall(".", **({"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}))"""
#: Asks the pod that serves code above 900 kB, until it answers: it may just be replaced.
_FETCH = """\
import http.client, shutil, sys, time
code, out, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
until, told = time.monotonic() + seconds, 0
def read(name):
    with open(code + "/" + name) as file:
        return file.read()
def lay(part):
    host, _, port = read("address").rpartition(":")
    server = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=30)
    server.request("GET", "/" + part, headers={"Authorization": "Bearer " + read("token")})
    answer = server.getresponse()
    if answer.status != 200:
        raise OSError("it answers %d %s" % (answer.status, answer.reason))
    with open(out + "/" + part, "wb") as file:
        shutil.copyfileobj(answer, file, 1 << 20)
        if file.tell() != int(answer.headers["Content-Length"]):
            raise OSError("it broke off")
    server.close()
for part in sys.argv[5::2]:
    while True:
        try:
            lay(part)
            break
        except (OSError, http.client.HTTPException) as exc:
            late = time.monotonic() > until
            if late or not told:
                told = 1
                sys.stderr.write("gpufabric: pod %s at %s does not give %s: %s%s\\n" % (
                    read("pod"), read("address"), part, exc,
                    ". It may be gone: a launch of the same code makes a new one" if late
                    else "; trying again for %d s" % seconds))
                sys.stderr.flush()
            if late:
                sys.exit(1)
            time.sleep(1)"""
_FETCH_S = 180  # a mounted Secret follows its object within about 90 s: a new pod's address too


@cache
def _code_text() -> str:
    text = _CODE.replace("@FETCH@", _FETCH).replace("@HASH@", _HASH).replace("@UNPACK@", _UNPACK)
    return text.replace("@FETCHED@", FETCHED).replace("@SECONDS@", str(_FETCH_S))


# What is stopped is told once to the node's command; a shell that is process 1 would ignore it. One
# that has just been forked has the shell's own trap, and would lose what it is told then (dash).
_RUN = """\
child=
told=
stop() {
  stopped=1
  if [ -z "$child" ]; then return; fi
  told=1
  while [ ! -s @ON@ ] && kill -0 "$child" 2>/dev/null; do :; done
  kill -TERM "$child" 2>/dev/null
}
trap stop TERM INT
run() {
  if [ -n "$stopped" ]; then exit 143; fi
  : >@ON@
  { echo on >@ON@; exec "$@"; } &
  child=$!
  if [ -n "$stopped" ] && [ -z "$told" ]; then stop; fi
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
exit "$?\"""".replace("@ON@", f"{WORK}/.gpufabric-on")

_GIVEN = (
    "GPUFABRIC_NODE_RANK", "GPUFABRIC_ATTEMPT", "GPUFABRIC_NUM_NODES", "GPUFABRIC_NODE_IPS",
)  # fmt: skip
#: For commands that join the node later (exec); what the pod's spec says they have anyway.
_NOTE = f"""\
quoted() {{
  rest=$1
  while :; do
    case $rest in
      *\\'*) printf %s%s "${{rest%%\\'*}}" "'\\\\''"; rest=${{rest#*\\'}} ;;
      *) printf %s "$rest"; return ;;
    esac
  done
}}
{{
@SOURCE@for name in @NAMES@; do
  eval "value=\\$$name"
  printf "export %s='%s'\\n" "$name" "$(quoted "$value")"
done
}} 2>/dev/null >{ENV}.new && mv {ENV}.new {ENV}"""

_RESOLVE = """\
address_of() {
  if command -v getent >/dev/null; then getent hosts "$1"
  else python3 -c 'import socket, sys
print(socket.getaddrinfo(sys.argv[1], None)[0][4][0])' "$1" 2>/dev/null; fi
}
command -v getent >/dev/null || command -v python3 >/dev/null || {
  echo "gpufabric: the image has neither getent nor python3, one of which finds the nodes" >&2
  exit 69
}
if [ "$GPUFABRIC_ATTEMPT" -gt 0 ]; then sleep @STALE@ & wait $!; fi
tries=0
rank=0
ips=
while [ "$rank" -lt "$GPUFABRIC_NUM_NODES" ]; do
  name=@HOST@-$rank.@SUBDOMAIN@
  found=$(address_of "$name") || found=
  if [ -n "$found" ]; then
    ips="$ips${found%% *}
"
    rank=$((rank + 1))
    continue
  fi
  tries=$((tries + 1))
  if [ "$tries" -gt @TRIES@ ]; then
    echo "gpufabric: the name $name of node $rank did not resolve in @TRIES@ s: its pod has no" \
      "address, or its command ended before this node had started" >&2
    exit 69
  fi
  sleep 1 & wait $!
done
ips=${ips%
}
if command -v python3 >/dev/null; then
  python3 -I -S -c '@MEET@' "@SUBDOMAIN@ $GPUFABRIC_ATTEMPT" "$GPUFABRIC_POD_IP"\
   "$GPUFABRIC_NODE_RANK" @PORT@ @TRIES@ @QUIET@ $ips & wait $!
fi"""
# kubeadm's Corefile gives answers of a cluster's names a TTL of 30 s, and caches on the way keep
# them so long: cmd/kubeadm/app/phases/addons/dns/manifests.go in k8s.io/kubernetes, 1.36, and
# https://coredns.io/plugins/cache/
_STALE_S = 31
_TRIES = 900
_QUIET_S = 60  # a network that is being set up answers sooner; GPUs that wait longer cost more


# The kubelet starts a container of a LeaderWorkerSet again in its pod, before the controller sees
# that and removes all of the gang's pods: it would meet nobody, in a folder that was used. So it
# does nothing, and says nothing into a log that is read as that of the first.
_ENDED = """\
if [ -e .gpufabric-began ]; then
  sleep 300 & wait $!
  exit 75
fi
: >.gpufabric-began
ended() {
  if [ -z "$stopped" ]; then
    echo "gpufabric: this node has ended with exit code $1, and all nodes start again" >&2
  fi
}
trap 'ended "$?"' EXIT"""
_LAUNCHED_S = 10


def _of_set(text: str, host: str) -> str:
    """The names of a LeaderWorkerSet's pods. Nobody counts its restarts, so the time tells one."""
    names = (f"{host}-$rank", f'{host}$([ "$rank" -eq 0 ] || echo "-$rank")')
    now = "$(($(date +%s 2>/dev/null) - GPUFABRIC_LAUNCHED))"
    again = ('[ "$GPUFABRIC_ATTEMPT" -gt 0 ]', f'[ "{now}" -gt {_LAUNCHED_S} ]')
    return text.replace(*names).replace(*again) + "\nunset GPUFABRIC_LAUNCHED"


def start_script(  # noqa: PLR0913  # the facts of one gang, by keyword
    *,
    host: str,
    subdomain: str,
    num_nodes: int,
    variables: Sequence[tuple[str, str]],
    source: str | None,
    envs: Mapping[str, str],
    code: bool,
    secrets: Sequence[str] = (),
    serves: bool = False,
) -> str:
    """The script of every node. `envs` and the named `secrets` are the user's, and win.

    `host` is the pods' host name without the rank. Of what `serves`, a LeaderWorkerSet, it is that
    of node 0, and the others have their rank behind it.
    """
    names = [*_GIVEN, *(name for name, _ in variables), *(envs if source is not None else ())]
    lines = [*_begin(host, subdomain, num_nodes, serves=serves)]
    if code:
        lines += [_code_text(), "unset GPUFABRIC_CODE"]
    if source is not None:
        lines += _sourced(source, envs, secrets)
    for name, value in variables:
        lines.append(f"export {name}={value if value == RANK else shlex.quote(value)}")
    again = "" if source is None else f"printf '%s\\n' {shlex.quote(f'. {shlex.quote(source)}')}\n"
    note = _NOTE.replace("@NAMES@", " ".join(dict.fromkeys(names))).replace("@SOURCE@", again)
    return "\n".join([*lines, note, _RUN])


def _begin(host: str, subdomain: str, num_nodes: int, *, serves: bool) -> Iterator[str]:
    """Which node this is, and where the others are."""
    yield "stopped="
    yield "trap 'stopped=1; exit 143' TERM INT"
    yield f"CODE={CODE}"
    index = "LWS_WORKER_INDEX" if serves else "JOB_COMPLETION_INDEX"
    yield f'export GPUFABRIC_NODE_RANK="${{{index}:-0}}"'
    yield 'export GPUFABRIC_ATTEMPT="${GPUFABRIC_ATTEMPT:-0}"'
    yield f"export GPUFABRIC_NUM_NODES={num_nodes}"
    yield f"cd {WORK} || exit 66"
    if serves:
        yield _ENDED
    if num_nodes > 1:  # first, since the name of a node that has ended resolves no more
        text = _together(host, subdomain)
        yield _of_set(text, host) if serves else text
    else:
        yield "ips=$GPUFABRIC_POD_IP"
    yield 'export GPUFABRIC_NODE_IPS="$ips"'
    yield "unset GPUFABRIC_POD_IP"


def _together(host: str, subdomain: str) -> str:
    return _resolve_text().replace("@HOST@", host).replace("@SUBDOMAIN@", subdomain)


@cache
def _resolve_text() -> str:
    text = _RESOLVE.replace("@MEET@", MEET)
    for word, value in (
        ("STALE", _STALE_S), ("TRIES", _TRIES), ("QUIET", _QUIET_S), ("PORT", PORT),
    ):  # fmt: skip
        text = text.replace(f"@{word}@", str(value))
    return text


def _sourced(source: str, envs: Mapping[str, str], secrets: Sequence[str]) -> Iterator[str]:
    """A platform's own script, and what the user said again after it."""
    path = shlex.quote(source)
    told = shlex.quote(f"gpufabric: {source} is not there")
    yield f"[ -r {path} ] || {{ echo {told} >&2; exit 66; }}"
    for number, name in enumerate(secrets):  # their values stand in no text, so not here
        yield f"gpufabric_kept_{number}=${name}"
    yield f". {path}"
    for name, value in envs.items():
        yield f"export {name}={shlex.quote(value)}"
    for number, name in enumerate(secrets):
        yield f'export {name}="$gpufabric_kept_{number}"; unset gpufabric_kept_{number}'
