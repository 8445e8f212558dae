"""Values as YAML text, with the line of every fault."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

from gpufabric._convert import from_dict
from gpufabric.errors import Problem, SpecError

__all__ = ["dump", "load_value"]

T = TypeVar("T")


def dump(data: object) -> str:
    """Gives plain data as YAML: order kept, multi-line text as blocks, no aliases."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  # yaml's signature
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        represent = cast("Callable[..., yaml.ScalarNode]", dumper.represent_scalar)
        return represent("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return yaml.dump(
        data,
        Dumper=Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=100,
    )


def load_value(cls: type[T], text: str) -> T:
    """Builds a `cls` from YAML text. Raises `SpecError`; each fault has its line."""
    import yaml

    try:
        compose = cast("Callable[..., object]", yaml.compose)
        root = compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        line = mark.line + 1 if mark is not None else None
        what = getattr(exc, "problem", None) or str(exc)
        raise SpecError([Problem(path="", message=f"not YAML: {what}", line=line)]) from exc
    lines: dict[str, int] = {}
    problems: list[Problem] = []
    _lines_of(root, "", lines, problems, depth=0)
    if problems:
        raise SpecError(problems, what=cls.__name__)
    data = cast("object", yaml.safe_load(text))
    if data is None:
        raise SpecError("the text holds no document", what=cls.__name__)
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


def _line_of(path: str, lines: Mapping[str, int]) -> int | None:
    while path:
        if path in lines:
            return lines[path]
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines.get("")


def _lines_of(
    node: object, path: str, lines: dict[str, int], problems: list[Problem], *, depth: int
) -> None:
    import yaml

    if isinstance(node, yaml.Node):
        lines.setdefault(path, node.start_mark.line + 1)
    if depth > 50 or len(lines) > 100_000:
        raise SpecError([Problem(path=path[:80], message="nested too deep, or too large")])
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in cast("Sequence[tuple[yaml.Node, yaml.Node]]", node.value):
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            below = f"{path}.{name}" if path else name
            lines[below] = key.start_mark.line + 1
            if name in seen:
                problems.append(
                    Problem(path=below, message="written twice", line=key.start_mark.line + 1)
                )
            seen.add(name)
            _lines_of(value, below, lines, problems, depth=depth + 1)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(cast("Sequence[yaml.Node]", node.value)):
            _lines_of(value, f"{path}[{i}]", lines, problems, depth=depth + 1)
