"""JSON fields as text: fast with orjson, exact with the standard library where orjson would lose something.

orjson refuses lone surrogates and whole numbers beyond 64 bits when it writes, and turns such numbers into floats
when it reads; harnesses send both, so these take the slower, exact way.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

import numpy as np
import orjson

# A whole number that may not fit 64 bits has at least 19 digits (2**63 has 19).
_LONG_NUMBER: Final = b"0" * 19
# Of 19 neighbours every ninth makes at least two: most texts are done with after a look at a ninth of them.
_STRIDE: Final = 9
_DIGITS: Final = bytes(ord("0") if byte in b"0123456789" else ord(" ") for byte in range(256))


class JsonTextError(ValueError):
    """A value that JSON can't spell, or a text that is no JSON."""


def dump(value: Any) -> str:
    """The JSON text of a plain value (numpy values too); NaN and infinities become null, keys become strings."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS).decode()
    except TypeError as exc:
        try:
            return json.dumps(_plain(value), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as slow:
            raise JsonTextError(f"JSON can't spell a value of this field: {exc}; {slow}") from exc


def _plain(value: Any) -> Any:
    """The same value in the standard library's terms, with orjson's treatment of NaN and of keys."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k if isinstance(k, str) else json.dumps(k).strip('"'): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    return value


def load(text: str) -> Any:
    """The value in a JSON text; JsonTextError when it doesn't parse."""
    if not _may_lose_digits(text):
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            pass  # perhaps an escaped lone surrogate, which only the standard library reads
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise JsonTextError(f"a JSON field doesn't parse: {exc}") from exc


def _may_lose_digits(text: str) -> bool:
    """Whether so many digits stand side by side that they may be a number beyond 64 bits.

    Looked for in a text whose digits are all 0 and whose other bytes are blank: a pattern takes a hundred times as long, seconds for
    a conversation with large images.
    """
    return len(text) >= len(_LONG_NUMBER) and b"00" in _blanked(text[::_STRIDE]) and _LONG_NUMBER in _blanked(text)


def _blanked(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass").translate(_DIGITS)
