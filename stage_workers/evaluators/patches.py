"""Patches: taken from where an agent worked, freed of what nobody wants, and applied somewhere else."""

from __future__ import annotations

import codecs
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import pairwise
from typing import Any, ClassVar

from bus import BlobMissingError, BlobStoreUnavailableError
from stage_workers.evaluators.artifacts import ArtifactMissingError
from stage_workers.evaluators.base import (
    EvaluationContext,
    EvaluatorError,
    OptionKind,
    seconds_option,
    text_option,
    texts_option,
)
from stage_workers.runtimes import ExecResult, Runtime, RuntimeFault

PATCH = "patch.diff"
"""The artifact that holds one."""

LIMIT_BYTES = 16 * 1024 * 1024
"""Of a patch. A longer one is no repair of anything (an agent that checked in its downloads)."""

DROP: tuple[str, ...] = ("__pycache__", "*.pyc", "*.pyo", ".pytest_cache")
"""Sections of these paths, or below folders of these names, aren't part of a patch."""

# An index of our own: the agent's may be locked by a git that was killed. What is new and not ignored counts, what it
# committed too: the comparison is with the commit that it began from.
_TAKE = """
index="$(mktemp)" && rm -f "$index" && export GIT_INDEX_FILE="$index"
git -c safe.directory='*' read-tree "$POLYNYA_BASE" &&
git -c safe.directory='*' -c advice.addEmbeddedRepo=false add -A . &&
git -c safe.directory='*' -c core.quotepath=off diff --cached --binary --submodule=diff --no-ext-diff --no-color "$POLYNYA_BASE"
code=$?
rm -f "$index"
exit $code
"""
_SECTION = re.compile(rb"^diff --git ", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchOptions:
    """How a patch is taken and applied; `repo_dir` counts from the working directory."""

    OPTIONS: ClassVar[Mapping[str, OptionKind]] = {
        "repo_dir": "text",
        "patch_command": "text",
        "drop": "texts",
        "apply_timeout_s": "seconds",
        "base_commit": "text",
    }

    repo_dir: str
    patch_command: str
    drop: tuple[str, ...]
    apply_timeout_s: float
    base_commit: str

    @classmethod
    def of(cls, options: Mapping[str, object], *, base_commit: str = "") -> PatchOptions:
        """From an evaluator's options. Raises EvaluatorError."""
        return cls(
            repo_dir=text_option(options, "repo_dir", "/testbed"),
            patch_command=text_option(options, "patch_command", _TAKE),
            drop=tuple(texts_option(options, "drop", DROP)),
            apply_timeout_s=seconds_option(options, "apply_timeout_s", 60.0),
            base_commit=text_option(options, "base_commit", base_commit or "HEAD"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """How a patch went in: by which program (None: it didn't), and what was said."""

    by: str | None
    said: str = ""


def directory(runtime: Runtime, path: str) -> str:
    """A path as programs of the runtime see it."""
    return posixpath.normpath(posixpath.join(runtime.workdir, path))


async def shell(runtime: Runtime, script: str, *, timeout_s: float, **options: Any) -> ExecResult:
    """Runs a script with `sh`. Raises EvaluatorError when it can't be started or isn't done in time."""
    try:
        result = await runtime.exec(["/bin/sh", "-c", script], timeout_s=timeout_s, **options)
    except RuntimeFault as error:
        raise EvaluatorError(f"a command could not be run: {error}") from error
    if result.timed_out:
        raise EvaluatorError(f"a command took longer than {timeout_s:g} s: {script.strip().splitlines()[0][:120]}")
    return result


async def head_of(runtime: Runtime, options: PatchOptions) -> str:
    """The commit that is checked out there. Raises EvaluatorError where there is no repository with one."""
    place = directory(runtime, options.repo_dir)
    result = await shell(
        runtime,
        f"cd {shlex.quote(place)} && git -c safe.directory='*' rev-parse --verify HEAD",
        timeout_s=options.apply_timeout_s,
    )
    if not result.succeeded:
        raise EvaluatorError(f"{place} is no git repository with a commit: {result.tail()}")
    return result.stdout.decode().strip()


async def take_patch(runtime: Runtime, options: PatchOptions, *, bases: Sequence[str]) -> bytes | None:
    """What the agent changed, from the first of these commits that its repository has (else its HEAD); None: too long.

    Raises:
        EvaluatorError: the patch command failed.
    """
    place = directory(runtime, options.repo_dir)
    wanted = " ".join(shlex.quote(base) for base in [*bases, options.base_commit] if base)
    script = (
        f"cd {shlex.quote(place)} || exit 97\nPOLYNYA_BASE=HEAD\n"
        f"for base in {wanted}; do git -c safe.directory='*' rev-parse -q --verify \"$base^{{commit}}\" >/dev/null 2>&1"
        ' && POLYNYA_BASE="$base" && break; done\nexport POLYNYA_BASE\n' + options.patch_command
    )
    size = 0

    def count(stream: str, data: bytes) -> None:
        nonlocal size
        size += len(data) if stream == "stdout" else 0

    result = await shell(
        runtime, script, timeout_s=options.apply_timeout_s, on_output=count, keep_bytes=2 * LIMIT_BYTES
    )
    if not result.succeeded:
        raise EvaluatorError(f"the patch command exited with {result.exit_code} in {place}: {result.tail()}")
    return None if size > LIMIT_BYTES else without(result.stdout, options.drop)


async def patch_of(context: EvaluationContext, options: PatchOptions, head: str) -> bytes | None:
    """What the agent changed since `head`: from its runtime, or as it was kept once that one is gone; None: too long.

    Raises:
        EvaluatorError: the patch command failed, or no patch was kept.
    """
    if context.runtime is not None:
        return await take_patch(context.runtime, options, bases=[head])
    try:
        return await context.artifacts.read(PATCH)
    except (ArtifactMissingError, BlobMissingError, BlobStoreUnavailableError) as error:
        raise EvaluatorError(f"the session's patch can't be had any more: {error}") from error


async def apply_patch(runtime: Runtime, options: PatchOptions, patch: bytes, name: str) -> Applied:
    """Applies a patch to the repository there: with `git apply`, else with `patch`, which allows for some fuzz."""
    file = directory(runtime, posixpath.join(runtime.home, ".polynya", name))
    try:
        await runtime.upload(file, patch)
    except RuntimeFault as error:
        raise EvaluatorError(f"the patch could not be uploaded: {error}") from error
    said = []
    quoted, place = shlex.quote(file), shlex.quote(directory(runtime, options.repo_dir))
    for by, command in (
        ("git apply", f"git -c safe.directory='*' apply -v --whitespace=nowarn {quoted}"),
        ("patch", f"patch --batch --fuzz=5 -p1 -i {quoted}"),
    ):
        result = await shell(runtime, f"cd {place} && {command} 2>&1", timeout_s=options.apply_timeout_s)
        said.append(f"{by}: {result.tail()}")
        if result.succeeded:
            return Applied(by=by, said=said[-1])
    return Applied(by=None, said="; ".join(said))


def sections(patch: bytes) -> Iterator[bytes]:
    """The parts of a git diff, one for each file; what stands before the first belongs to nothing."""
    starts = [found.start() for found in _SECTION.finditer(patch)]
    for start, end in pairwise([*starts, len(patch)]):
        yield patch[start:end]


def paths_of(section: bytes) -> tuple[str | None, str | None]:
    """The old and the new path of a section; None where the file isn't there on that side."""
    head = section.split(b"\n@@", 1)[0].split(b"\nGIT binary patch", 1)[0].splitlines()
    old = new = None
    left, _, right = head[0][len(b"diff --git ") :].partition(b" b/") if b'"' not in head[0] else (b"", b"", b"")
    if left:
        old, new = _path(left), _path(b"b/" + right)
    for line in head[1:]:
        for start, is_old in ((b"--- ", True), (b"rename from ", True), (b"+++ ", False), (b"rename to ", False)):
            if line.startswith(start):
                path = _path(line[len(start) :], has_prefix=start in (b"--- ", b"+++ "))
                old, new = (path, new) if is_old else (old, path)
        if line.startswith(b"new file mode"):
            old = None
        if line.startswith(b"deleted file mode"):
            new = None
    return old, new


def _path(raw: bytes, *, has_prefix: bool = True) -> str | None:
    raw = raw.rstrip(b"\t\r")
    if raw.startswith(b'"') and raw.endswith(b'"'):
        raw = codecs.escape_decode(raw[1:-1])[0]  # C escapes, as git writes them
    if raw == b"/dev/null":
        return None
    text = raw.decode("utf-8", "surrogateescape")
    return text[2:] if has_prefix and text[:2] in {"a/", "b/"} else text


def without(patch: bytes, globs: Sequence[str]) -> bytes:
    """A patch without the sections of files that these globs name, by themselves or by a folder above them."""
    return b"".join(section for section in sections(patch) if not _is_dropped(section, globs))


def _is_dropped(section: bytes, globs: Sequence[str]) -> bool:
    path = next((path for path in reversed(paths_of(section)) if path is not None), "")
    names = [path, *path.split("/")]
    return any(fnmatch(name, glob) for name in names for glob in globs)
