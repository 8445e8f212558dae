"""The page of findings says what the rules say."""

import importlib.util
from pathlib import Path

_GENERATOR = Path(__file__).parents[3] / "docs" / "_gen" / "findings.py"


def test_the_page_of_findings_is_written_from_the_rules():
    spec = importlib.util.spec_from_file_location("findings_page", _GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page(), "run: python docs/_gen/findings.py"
