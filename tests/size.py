"""Count the code, and fail where a part is larger than its line in `size_budget.toml`: `make size`.

Tokens are counted, not lines, so that nothing is gained by dense code: without comments, docstrings (those after
constants too), newlines and indents. Compiled functions and lines with module constants of src/rtbm are counted, too.
With --lower, the budget is lowered to what the code has now.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUDGET = Path(__file__).with_name("size_budget.toml")
UNCOUNTED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
PARTS = ["theta", "training", "distributions", "estimators", "nn", "explorer"]
"""Packages of src/rtbm with a line of their own; the others are "rest"."""
NAMES = [*PARTS, "rest", "src", "tests", "experiments", "compiled functions", "lines with module constants"]
COMPILED = re.compile(r"^ *@(compiled|reducing|njit|numba\.(njit|jit|vectorize|guvectorize))", re.MULTILINE)
CONSTANT = re.compile(r"^[A-Z][A-Z0-9_]*(, [A-Z][A-Z0-9_]*)*(: [^=\n]+)? = ", re.MULTILINE)


def count_tokens(text: str) -> int:
    """The tokens of code of a Python file."""
    texts = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
    documentation = {
        line
        for node in texts
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type not in UNCOUNTED and token.start[0] not in documentation for token in tokens)


def count_all() -> dict[str, int]:
    """The sizes of all parts, as in the budget."""
    found: Counter[str] = Counter()
    source = ROOT / "src" / "rtbm"
    for path in sorted(source.rglob("*.py")):
        text, part = path.read_text(encoding="utf-8"), path.relative_to(source).parts[0]
        found[part if part in PARTS else "rest"] += count_tokens(text)
        found["compiled functions"] += len(COMPILED.findall(text))
        found["lines with module constants"] += len(CONSTANT.findall(text))
    found["src"] = sum(found[part] for part in [*PARTS, "rest"])
    for name, folders in {"tests": ["tests"], "experiments": ["experiments", "examples", "benchmarks"]}.items():
        files = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
        found[name] = sum(count_tokens(path.read_text(encoding="utf-8")) for path in files)
    return {name: found[name] for name in NAMES}


def main() -> None:
    """Print the table; exit with 1 where something is over budget."""
    found = count_all()
    budget = tomllib.loads(BUDGET.read_text(encoding="utf-8"))
    if "--lower" in sys.argv[1:]:
        budget = {name: min(size, budget.get(name, size)) for name, size in found.items()}
        BUDGET.write_text("".join(f'"{name}" = {size:_}\n' for name, size in budget.items()), encoding="utf-8")
    print(f"{'':30}{'now':>10}{'budget':>10}")
    for name, size in found.items():
        print(f"{name:30}{size:>10,}{budget[name]:>10,}{'   over budget' * (size > budget[name])}")
    sys.exit(any(size > budget[name] for name, size in found.items()))


if __name__ == "__main__":
    main()
