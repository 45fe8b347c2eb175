"""What test runners print, as a status for each test. Pure; names are those that the benchmarks' rows use.

A status is PASSED, FAILED, ERROR, SKIPPED or XFAIL. Where a log names a test more than once, the worst counts, and a name with
blanks in it is also known by its first word: some benchmarks' rows have their names cut there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

Statuses = dict[str, str]
LogParser = Callable[[str], Statuses]

PASSING = frozenset({"PASSED", "XFAIL"})
_WORST_FIRST = ("ERROR", "FAILED", "SKIPPED", "XFAIL", "XPASS", "PASSED")
_WORDS = frozenset(_WORST_FIRST)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SKIP_PLACE = re.compile(r"\[\d+\] ")


def _collect(found: Iterable[tuple[str, str]]) -> Statuses:
    statuses: Statuses = {}
    for name, status in found:
        for known in {name, name.split()[0] if name.split() else name}:
            other = statuses.get(known, status)
            statuses[known] = min(other, status, key=_WORST_FIRST.index)
    return statuses


def _lines(log: str) -> Iterator[str]:
    for line in _COLOUR.sub("", log).splitlines():
        yield line.rstrip()


def _pytest(log: str) -> Iterator[tuple[str, str]]:
    for line in _lines(log):
        word, _, rest = line.partition(" ")
        if word not in _WORDS or not rest.strip():
            # `-v` says it the other way round: tests/test_a.py::test_b PASSED  [ 50%]
            found = re.match(r"(\S+::.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", line)
            if found:
                yield found[1], found[2]
            continue
        rest = rest.strip()
        if word == "SKIPPED":
            rest = _SKIP_PLACE.sub("", rest).partition(": ")[0]
        elif " - " in rest:
            rest = rest.partition(" - ")[0]
        yield rest, word


def pytest(log: str) -> Statuses:
    """The short summary of `pytest -rA`, and the lines of `pytest -v`."""
    return _collect(_pytest(log))


def pytest_options(log: str) -> Statuses:
    """`pytest -rA` where a parameter may be a path of the machine: only its last part counts (`test_a[/x/y]` is `test_a[/y]`)."""

    def shorten(name: str) -> str:
        found = re.fullmatch(r"(.*?)\[(/[^/].*)\](.*)", name)
        if found is None or "*" in found[2]:
            return name
        return f"{found[1]}[/{found[2].rpartition('/')[2]}]{found[3]}"

    return _collect((shorten(name), status) for name, status in _pytest(log))


def pytest_dotted(log: str) -> Statuses:
    """`pytest -rA` with names without their file: `tests/test_a.py::TestB::test_c` is `TestB.test_c`."""
    return _collect((".".join(name.split("::")[1:]) or name, status) for name, status in _pytest(log))


def matplotlib(log: str) -> Statuses:
    """`pytest -rA` where two names hold an enum that newer versions print by its number."""
    return pytest(log.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))


_ENDS = {"ok": "PASSED", "OK": "PASSED", "FAIL": "FAILED", "ERROR": "ERROR", "expected failure": "XFAIL"}


def _unittest(log: str) -> Iterator[tuple[str, str]]:
    waiting = ""
    for raw in _lines(log):
        line = raw.strip()
        name, separator, end = line.rpartition(" ... ")
        if separator:
            waiting = line.partition(" ... ")[0]
            end = end.strip()
            if end in _ENDS:
                yield name, _ENDS[end]
                waiting = ""
            elif end.startswith("skipped"):
                yield name, "SKIPPED"
                waiting = ""
            elif end.startswith("unexpected success"):
                yield name, "FAILED"
                waiting = ""
            continue
        # What the test printed stands between its name and its verdict.
        if waiting and line in _ENDS:
            yield waiting, _ENDS[line]
            waiting = ""
        for word in ("FAIL", "ERROR"):
            if line.startswith(f"{word}: "):
                yield line[len(word) + 2 :], _ENDS[word]


def unittest(log: str) -> Statuses:
    """`python -m unittest -v`, and Django's own runner with `--verbosity 2`: `test_a (module.Class) ... ok`."""
    return _collect_whole(_unittest(log))


def _collect_whole(found: Iterable[tuple[str, str]]) -> Statuses:
    """By whole names only: the first word of `test_a (module.Class)` is shared by many."""
    statuses: Statuses = {}
    for name, status in found:
        statuses[name] = min(statuses.get(name, status), status, key=_WORST_FIRST.index)
    return statuses


def sympy(log: str) -> Statuses:
    """SymPy's own runner, `bin/test --verbose`: `test_a ok`, and a headline for each failure."""

    def found() -> Iterator[tuple[str, str]]:
        for line in _lines(log):
            headline = re.fullmatch(r"_+ (.+\.py:\S+) _+", line.strip())
            if headline:
                yield headline[1], "FAILED"
            words = line.split()
            if len(words) >= 2 and words[0].startswith("test_"):
                status = {"ok": "PASSED", "F": "FAILED", "E": "ERROR", "f": "XFAIL", "s": "SKIPPED"}.get(words[-1])
                if status:
                    yield words[0], status

    return _collect_whole(found())


def go(log: str) -> Statuses:
    """`go test -v`: `--- PASS: TestA (0.00s)`."""
    statuses = {"PASS": "PASSED", "FAIL": "FAILED", "SKIP": "SKIPPED"}
    found = (re.match(r"\s*--- (PASS|FAIL|SKIP): (\S+)", line) for line in _lines(log))
    return _collect_whole((match[2], statuses[match[1]]) for match in found if match)


def tap(log: str) -> Statuses:
    """The Test Anything Protocol: `ok 1 - name`, `not ok 2 - name # SKIP why`."""

    def found() -> Iterator[tuple[str, str]]:
        for line in _lines(log):
            match = re.match(r"(not )?ok\b\s*\d*\s*(?:- )?(.*?)(?:\s+#\s*(SKIP|TODO).*)?$", line.strip(), re.IGNORECASE)
            if match and match[2]:
                passed = "FAILED" if match[1] else "PASSED"
                yield match[2], {"skip": "SKIPPED", "todo": "XFAIL"}.get((match[3] or "").lower(), passed)

    return _collect_whole(found())


PARSERS: dict[str, LogParser] = {
    "pytest": pytest,
    "pytest_options": pytest_options,
    "pytest_dotted": pytest_dotted,
    "matplotlib": matplotlib,
    "unittest": unittest,
    "django": unittest,
    "sympy": sympy,
    "go": go,
    "tap": tap,
}
