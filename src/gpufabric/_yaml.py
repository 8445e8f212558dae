"""Values as YAML text, with the line of every fault."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeVar, cast

from gpufabric._convert import from_dict
from gpufabric.errors import Problem, SpecError

if TYPE_CHECKING:
    import yaml

__all__ = ["dump", "load_value"]

T = TypeVar("T")

_DEEPEST = 50
_MOST_LINES = 100_000

_WORDS = (
    ("tag:yaml.org,2002:bool", re.compile(r"true|True|TRUE|false|False|FALSE"), "tTfF"),
    ("tag:yaml.org,2002:null", re.compile(r"null|Null|NULL|~|"), ["n", "N", "~", ""]),
    ("tag:yaml.org,2002:int", re.compile(r"[-+]?[0-9]+"), "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"),
        "-+.0123456789",
    ),
    ("tag:yaml.org,2002:merge", re.compile(r"<<"), "<"),
)


class _Int(int):
    """A whole number of a YAML text, and how it was written (`007`)."""

    written: str


_DEPTH = 50


class _Float(float):
    """A number of a YAML text, and how it was written (`1.10`)."""

    written: str


@cache
def _loader() -> "type[yaml.SafeLoader]":
    """YAML 1.2's core words only: `yes`, `1:30`, `0777` and dates are not turned into others."""
    import yaml

    class Loader(yaml.SafeLoader):
        depth = 0

        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            self.depth += 1
            if self.depth > _DEPTH:  # before the rest is scanned, which takes its square in time
                raise SpecError([Problem(path="", message=f"nested more than {_DEPTH} deep")])
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    Loader.yaml_implicit_resolvers = {}  # not those of YAML 1.1, which it inherits

    def whole(_: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
        number = _Int(node.value)
        number.written = node.value
        return number

    def real(_: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
        number = _Float(node.value)
        number.written = node.value
        return number

    _teach(Loader)
    Loader.add_constructor("tag:yaml.org,2002:int", whole)
    Loader.add_constructor("tag:yaml.org,2002:float", real)
    return Loader


class _Whole:
    """A pattern whose `match` is that of the whole word, as yaml calls it."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.match = pattern.fullmatch


def _teach(kind: "type[yaml.SafeLoader | yaml.SafeDumper]") -> None:
    add = cast("Callable[..., None]", kind.add_implicit_resolver)  # pyright: ignore[reportUnknownMemberType]  # PyYAML's stubs
    for tag, pattern, first in _WORDS:
        add(tag, _Whole(pattern), list(first))


@cache
def _dumper() -> "type[yaml.SafeDumper]":
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes what this module's reader, or one of YAML 1.1, would take for another thing."""

        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  # yaml's signature
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        # YAML folds U+0085, U+2028 and the like as line breaks: only quotes keep them.
        odd = any(not (c.isprintable() or c == "\n") for c in value)
        style = '"' if odd else "|" if "\n" in value else None
        represent = cast("Callable[..., yaml.ScalarNode]", dumper.represent_scalar)  # pyright: ignore[reportUnknownMemberType]  # PyYAML's stubs
        return represent("tag:yaml.org,2002:str", value, style=style)

    _teach(Dumper)
    Dumper.add_representer(str, text)
    return Dumper


def dump(data: object) -> str:
    """Gives plain data as YAML: order kept, multi-line text as blocks, no aliases."""
    import yaml

    return yaml.dump(  # pyright: ignore[reportUnknownMemberType]  # PyYAML's stubs
        data,
        Dumper=_dumper(),
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=100,
    )


def load_value(cls: type[T], text: str) -> T:
    """Builds a `cls` from YAML text. Raises `SpecError`; each fault has its line."""
    data, lines = _load(cls, text)
    try:
        return from_dict(cls, data)
    except SpecError as exc:
        raise SpecError(
            [
                Problem(path=p.path, message=p.message, line=_line_of(p.path, lines))
                for p in exc.problems
            ],
            what=cls.__name__,
        ) from exc


def _load(cls: type, text: str) -> tuple[object, dict[str, int]]:
    import yaml

    lines: dict[str, int] = {}
    try:
        loader = _loader()(text)
        root = loader.get_single_node()
        problems = list(_lines_of(root, lines))
        construct = cast("Callable[[object], object]", loader.construct_document)  # pyright: ignore[reportUnknownMemberType]  # PyYAML's stubs
        data = None if root is None or problems else construct(root)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        line = mark.line + 1 if mark is not None else None
        what = getattr(exc, "problem", None) or str(exc)
        raise SpecError([Problem(path="", message=f"not YAML: {what}", line=line)]) from exc
    except SpecError:
        raise
    except (ValueError, RecursionError) as exc:
        raise SpecError(f"not YAML that can be read: {exc}", what=cls.__name__) from exc
    if problems:
        raise SpecError(problems, what=cls.__name__)
    if data is None:
        raise SpecError("the text holds no document", what=cls.__name__)
    return _as_written(data), lines


def _as_written(data: object) -> object:
    """Numbers as numbers; but as text, as they were written, where they are variables' values."""
    if not isinstance(data, dict):
        return _numbers(data)
    fields = cast("dict[object, object]", data)
    found = {key: _numbers(value) for key, value in fields.items()}
    envs = fields.get("envs")
    if isinstance(envs, dict):
        found["envs"] = {
            key: value.written if isinstance(value, _Int | _Float) else _numbers(value)
            for key, value in cast("dict[object, object]", envs).items()
        }
    return found


def _numbers(value: object) -> object:
    if isinstance(value, dict):
        items = cast("dict[object, object]", value)
        return {_numbers(key): _numbers(item) for key, item in items.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in cast("list[object]", value)]
    if isinstance(value, _Int):
        return int(value)
    return float(value) if isinstance(value, _Float) else value


def _line_of(path: str, lines: Mapping[str, int]) -> int | None:
    while path:
        if path in lines:
            return lines[path]
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines.get("")


def _lines_of(root: object, lines: dict[str, int]) -> Iterator[Problem]:
    """Fills in the line of every path; gives the names that are written twice."""
    import yaml

    todo: list[tuple[object, str, int]] = [(root, "", 0)]
    while todo:
        node, path, depth = todo.pop()
        if isinstance(node, yaml.Node):
            lines.setdefault(path, node.start_mark.line + 1)
        if depth > _DEEPEST or len(lines) > _MOST_LINES:
            raise SpecError("nested too deep, or too large")
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in cast("Sequence[tuple[yaml.Node, yaml.Node]]", node.value):
                name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
                below = f"{path}.{name}" if path else name
                line = lines[below] = key.start_mark.line + 1
                if name in seen:
                    yield Problem(path=below, message="written twice", line=line)
                seen.add(name)
                todo.append((value, below, depth + 1))
        elif isinstance(node, yaml.SequenceNode):
            items = cast("Sequence[yaml.Node]", node.value)
            todo.extend((item, f"{path}[{i}]", depth + 1) for i, item in enumerate(items))
