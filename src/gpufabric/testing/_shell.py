r"""A tiny shell, enough to simulate the commands of tests: nothing is ever run.

Statements end at a newline or `;` and join with `&&` and `||`. Words know quotes, `\`, `$NAME`,
`${NAME}` and `${#NAME}`. Commands: `echo`, `printenv`, `env`, `seq`, `sleep`, `exit`, `true`,
`false`, `:`, `export`, `[` and `test`; `>&2` sends what one prints to stderr.
"""

import re
from collections.abc import Iterator, Mapping

from gpufabric._frozen import frozen

__all__ = ["Output", "UnknownCommand", "simulate"]

_COMMANDS = frozenset(
    {"echo", "printenv", "env", "seq", "sleep", "exit", "true", "false", ":", "export", "[", "test"}
)
_OPERATOR = re.compile(r"&&|\|\||;|\n|1?>&2(?=[\s;&|]|$)")
_EXPANSION = re.compile(r"\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<length>#?)(?P<braced>[A-Za-z_]\w*)\})")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class UnknownCommand(Exception):  # noqa: N818  # not an error: the text is simply not simulated
    """The text has more than the tiny shell knows."""


@frozen(kw_only=True)
class Output:
    """What a command does: timed lines, then an exit code after `seconds` (None: never)."""

    lines: tuple[tuple[float, str, bytes], ...] = ()
    exit_code: int = 0
    seconds: float | None = 0.0


def simulate(text: str, env: Mapping[str, str]) -> Output:
    """Gives what `text` would do. Raises `UnknownCommand` where it has more than is known."""
    return _Machine(dict(env)).run(list(_statements(text)))


Part = tuple[str, bool]  # text, and whether variables in it count
Word = tuple[Part, ...]


@frozen(kw_only=True)
class _Statement:
    joint: str  # what stands before it: ";", "&&" or "||"
    words: tuple[Word, ...]
    to_stderr: bool


def _statements(text: str) -> Iterator[_Statement]:
    joint, words, to_stderr = ";", list[Word](), False
    for piece in [*_tokens(text), ";"]:
        if isinstance(piece, tuple):
            words.append(piece)
            continue
        if piece.endswith(">&2"):
            to_stderr = True
            continue
        if words:
            if words[0][0][0] not in _COMMANDS:
                raise UnknownCommand(text)
            yield _Statement(joint=joint, words=tuple(words), to_stderr=to_stderr)
        elif piece in {"&&", "||"} or joint in {"&&", "||"}:
            if piece == "\n":  # a list goes on after a joint
                continue
            raise UnknownCommand(text)
        joint, words, to_stderr = (";" if piece == "\n" else piece), [], False


def _tokens(text: str) -> Iterator[Word | str]:
    at, parts = 0, list[Part]()
    while at < len(text):
        operator = _OPERATOR.match(text, at)
        if operator and not (operator[0].endswith(">&2") and parts):
            if parts:
                yield tuple(parts)
                parts = []
            yield operator[0]
            at = operator.end()
        elif text[at].isspace():
            if parts:
                yield tuple(parts)
                parts = []
            at += 1
        elif text[at] == "#" and not parts:
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        else:
            part, at = _part(text, at)
            parts.append(part)
    if parts:
        yield tuple(parts)


def _part(text: str, at: int) -> tuple[Part, int]:
    char = text[at]
    if char == "'":
        end = text.find("'", at + 1)
        if end < 0:
            raise UnknownCommand(text)
        return (text[at + 1 : end], False), end + 1
    if char == '"':
        end = text.find('"', at + 1)
        inside = text[at + 1 : end]
        if end < 0 or "\\" in inside or "`" in inside:
            raise UnknownCommand(text)
        return (inside, True), end + 1
    if char == "\\" and at + 1 < len(text) and text[at + 1] != "\n":
        return (text[at + 1], False), at + 2
    if char in "\\`|&<>(){}*?~!" and not (char == "!" and text[at : at + 2] == "!="):
        raise UnknownCommand(text)
    if char == "$":
        match = _EXPANSION.match(text, at)
        if match is None:
            raise UnknownCommand(text)
        return (match[0], True), match.end()
    end = at + 1
    while end < len(text) and not (text[end].isspace() or text[end] in "'\"\\`|&<>(){}*?~$;"):
        end += 1
    return (text[at:end], False), end


class _Exit(Exception):  # noqa: N818  # control flow of the simulated shell
    def __init__(self, code: int) -> None:
        self.code = code


class _Forever(Exception):  # noqa: N818  # control flow of the simulated shell
    pass


class _Machine:
    def __init__(self, env: dict[str, str]) -> None:
        self.env = env
        self.now = 0.0
        self.lines: list[tuple[float, str, bytes]] = []

    def run(self, statements: list[_Statement]) -> Output:
        code = 0
        try:
            for statement in statements:
                skip = (statement.joint == "&&" and code != 0) or (
                    statement.joint == "||" and code == 0
                )
                if not skip:
                    code = self._command(statement)
        except _Exit as exc:
            code = exc.code
        except _Forever:
            return Output(lines=tuple(self.lines), exit_code=0, seconds=None)
        return Output(lines=tuple(self.lines), exit_code=code, seconds=self.now)

    def _expand(self, word: Word) -> str:
        def value(match: re.Match[str]) -> str:
            found = self.env.get(match["plain"] or match["braced"], "")
            return str(len(found)) if match["length"] else found

        parts: list[str] = []
        for text, counts in word:
            if counts and "$" in _EXPANSION.sub("", text):
                raise UnknownCommand(text)
            parts.append(_EXPANSION.sub(value, text) if counts else text)
        return "".join(parts)

    def _command(self, statement: _Statement) -> int:  # noqa: PLR0912  # one branch a command
        name, *words = [self._expand(word) for word in statement.words]
        stream = "stderr" if statement.to_stderr else "stdout"
        match name:
            case "echo":
                self._print(stream, " ".join(words))
            case "env":
                for key in sorted(self.env):
                    self._print(stream, f"{key}={self.env[key]}")
            case "printenv":
                if any(word not in self.env for word in words):
                    return 1
                for word in words:
                    self._print(stream, self.env[word])
            case "seq":
                first, last = (1, *map(_whole, words))[-2:]
                for number in range(first, last + 1):
                    self._print(stream, str(number))
            case "sleep":
                self.now += _duration(words)
            case "exit":
                raise _Exit(_whole(words[0]) % 256 if words else 0)
            case "export":
                for word in words:
                    key, _, text = word.partition("=")
                    self.env[key] = text
            case "[" | "test":
                return 0 if _test(name, words) else 1
            case _:
                return 1 if name == "false" else 0
        return 0

    def _print(self, stream: str, text: str) -> None:
        for line in text.split("\n"):
            self.lines.append((self.now, stream, line.encode("utf-8", "surrogateescape")))


def _whole(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise UnknownCommand(word) from None


def _duration(words: list[str]) -> float:
    if words == ["infinity"]:
        raise _Forever
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", words[0] if len(words) == 1 else "")
    if match is None:
        raise UnknownCommand(" ".join(words))
    return float(match[1]) * _UNITS[match[2] or "s"]


def _test(name: str, words: list[str]) -> bool:  # noqa: PLR0911  # one return a form
    if name == "[" and (not words or words.pop() != "]"):
        raise UnknownCommand(name)
    match words:
        case ["-n", text]:
            return text != ""
        case ["-z", text]:
            return text == ""
        case [left, "=" | "==", right]:
            return left == right
        case [left, "!=", right]:
            return left != right
        case [left, "-eq", right]:
            return _whole(left) == _whole(right)
        case [left, "-ne", right]:
            return _whole(left) != _whole(right)
        case [left, "-lt", right]:
            return _whole(left) < _whole(right)
        case [left, "-ge", right]:
            return _whole(left) >= _whole(right)
        case _:
            raise UnknownCommand(" ".join(words))
