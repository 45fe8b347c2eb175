"""A small real git repository with a bug, its tests, and the patches that mend it or don't."""

from __future__ import annotations

from typing import Any

BUGGY = "def area(width, height):\n    return width + height\n\n\ndef double(x):\n    return 2 * x\n"
RIGHT = BUGGY.replace("width + height", "width * height")
WRONG = BUGGY.replace("width + height", "width - height")
OLD_TESTS = "from shapes import double\n\n\ndef test_double():\n    assert double(4) == 8\n"
NEW_TESTS = (
    "from shapes import area, double\n\n\ndef test_double():\n    assert double(4) == 8\n\n\n"
    "def test_area():\n    assert area(3, 4) == 12\n"
)

SETUP = """
set -e
git init -q .
git config user.email a@b.c
git config user.name tests
printf '%s' "$BUGGY" > shapes.py
mkdir -p tests
printf '%s' "$OLD_TESTS" > tests/test_shapes.py
printf '[pytest]\\n' > pytest.ini
git add -A
GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z' git commit -q -m start
"""

# An empty line of the context is a blank.
TEST_PATCH = """\
diff --git a/tests/test_shapes.py b/tests/test_shapes.py
--- a/tests/test_shapes.py
+++ b/tests/test_shapes.py
@@ -1,5 +1,9 @@
-from shapes import double
+from shapes import area, double
{0}
{0}
 def test_double():
     assert double(4) == 8
+
+
+def test_area():
+    assert area(3, 4) == 12
""".format(" ")

INSTANCE: dict[str, Any] = {
    "instance_id": "tests__shapes-1",
    "repo": "tests/shapes",
    "test_patch": TEST_PATCH,
    "FAIL_TO_PASS": ["tests/test_shapes.py::test_area"],
    "PASS_TO_PASS": '["tests/test_shapes.py::test_double"]',
}


def setup_step() -> dict[str, Any]:
    """The step that makes the repository in a working directory; the same commit every time."""
    quoted = {name: text.replace("'", "'\\''") for name, text in (("BUGGY", BUGGY), ("OLD_TESTS", OLD_TESTS))}
    exports = "\n".join(f"export {name}='{text}'" for name, text in quoted.items())
    return {"exec": f"{exports}\n{SETUP}"}
