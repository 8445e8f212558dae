"""Runs every notebook top to bottom and checks that the outputs kept in it are still its own.

`python notebooks/run.py` checks; `python notebooks/run.py --write` keeps the new outputs.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
from clusters import clusters
from nbclient import NotebookClient

HERE = Path(__file__).parent


@contextlib.contextmanager
def surroundings(path: Path, folder: Path) -> Iterator[dict[str, str]]:
    """The environment of a notebook's kernel."""
    if "kubernetes" not in path.stem:
        yield dict(os.environ)
        return
    with clusters(folder) as kubeconfig:  # by its name alone: no path is kept in the outputs
        yield {**os.environ, "KUBECONFIG": kubeconfig.name}


def main() -> int:
    """Runs the notebooks; 1 if one fails or was kept without outputs."""
    failed = 0
    for path in sorted(HERE.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        kept = [bool(cell.get("outputs")) for cell in notebook.cells if cell.cell_type == "code"]
        with tempfile.TemporaryDirectory() as folder:
            client = NotebookClient(notebook, timeout=180, resources={"metadata": {"path": folder}})
            with surroundings(path, Path(folder)) as env:
                client.execute(env=env)
        ran = [bool(cell.get("outputs")) for cell in notebook.cells if cell.cell_type == "code"]
        if "--write" in sys.argv:
            for cell in notebook.cells:
                cell.metadata.pop("execution", None)
            nbformat.write(notebook, path)
        elif kept != ran:
            print(f"{path.name}: outputs are not kept: python notebooks/run.py --write")
            failed = 1
        print(f"{path.name}: ran {len(ran)} code cells")
    return failed


if __name__ == "__main__":
    sys.exit(main())
