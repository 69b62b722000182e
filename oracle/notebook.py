"""Executes a notebook, cell by cell in one kernel, and prints what its cells print.

    notebook.py NOTEBOOK.ipynb

A cell that fails ends it with the cell's error and exit code 1. Pictures are named by their type.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError


def main() -> int:
    path = Path(sys.argv[1])
    notebook = nbformat.read(path, as_version=4)
    # For machines with other work: a cell takes seconds, and so does the kernel's start.
    client = NotebookClient(notebook, timeout=600, startup_timeout=600, resources={"metadata": {"path": str(path.parent)}})
    try:
        client.execute()
    except CellExecutionError as error:
        print(error, file=sys.stderr)
        return 1
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                print(output.text)
            for kind in output.get("data", {}):
                print(f"[{kind}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
