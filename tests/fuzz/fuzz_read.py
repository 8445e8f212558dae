"""Reads, judges and prints whatever bytes come: nothing may raise, and the report is JSON.

With atheris (`pip install --group fuzz`), from the repository's root:

    python tests/fuzz/fuzz_read.py -runs=1000000 -max_len=1500 -timeout=20 \
        -dict=tests/fuzz/words.dict /tmp/found tests/fuzz/corpus

New inputs that reach new code are kept in the first folder. What broke goes into
`tests/fuzz/corpus`, which `test_kept_inputs.py` runs without atheris.

Without atheris, many more inputs a second, changed blindly from the kept ones:

    python tests/fuzz/fuzz_read.py --blind 1000000 SEED
"""

from __future__ import annotations

import json
import random
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpufabric.net import NetReport


ODD: Final = (
    *(b"9" * 400, b"-1", b"1e999", b"nan", b"inf", b"N/A", b"0x", b"0", b"\xc2\xb2", b"\xff\xfe"),
    *(b"\n", b"\r", b"\x00", b"\x1b[31m", b"{", b"}", b'"', b"[", b"]", b"<", b">", b"\t", b": "),
)


def one_input(data: bytes) -> NetReport:
    """What a user does with a text: read it, print the JSON, the summary and the findings."""
    from gpufabric import net
    from gpufabric.net._summary import summary

    report = net.read(data)
    document = report.to_dict()
    if not json.dumps(document, allow_nan=False):
        raise AssertionError("no JSON")
    if not summary(report, document):
        raise AssertionError("no summary")
    diagnosis = net.diagnose(report, instance_type="p5.48xlarge")
    diagnosis.to_dict()
    str(diagnosis)
    return report


def main() -> None:
    """Runs under atheris, whose flags are libFuzzer's; with `--blind`, without it."""
    if sys.argv[1:2] == ["--blind"]:
        count, seed = map(int, sys.argv[2:4])
        for data in changed(count, seed):
            try:
                watched(data)
            except BaseException:
                sys.stderr.write(f"broken by {data!r}\n")
                raise
        sys.stderr.write(f"{count} inputs read\n")
        return
    import atheris

    with atheris.instrument_imports(include=["gpufabric.net"]):
        one_input(b"")  # whatever loads on use is loaded, and watched, now
    atheris.Setup(sys.argv, watched)
    atheris.Fuzz()


def watched(data: bytes) -> None:
    """Reads all; judging costs more than reading, so of eight inputs one is judged too."""
    from gpufabric import net

    if zlib.crc32(data) % 8:
        net.read(data)
    else:
        one_input(data)


def changed(count: int, seed: int) -> Iterator[bytes]:
    """So many inputs: parts of the kept ones and words of the formats, cut, doubled and mixed."""
    rng = random.Random(seed)  # noqa: S311 - inputs, no secrets
    lines = [line for text in kept().values() for line in text.splitlines(keepends=True)]
    words = [line.strip() for line in lines if len(line) < 40] + list(ODD)
    for _ in range(count):
        data = bytearray(b"".join(rng.choices(lines, k=rng.randint(1, 5))))
        for _ in range(rng.randint(0, 6)):
            at, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
            how = rng.randrange(5)
            if how == 0:
                data[at:at] = rng.choice(words)
            elif how == 1:
                del data[at : min(end, at + rng.randint(1, 30))]
            elif how == 2:
                data[at : at + 1] = bytes((rng.randrange(256),))
            elif how == 3:
                data[at:at] = data[at : min(end, at + 60)]
            else:
                del data[at:]
        yield bytes(data)


def kept() -> dict[str, bytes]:
    """The kept inputs, by name."""
    folder = Path(__file__).parent / "corpus"
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


if __name__ == "__main__":
    main()
