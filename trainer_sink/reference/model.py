"""The model under training: any Hugging Face causal language model, loaded, run and written as a checkpoint directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import torch

from trainer_sink.reference.errors import ModelLoadError
from trainer_sink.reference.forward import TokenBatch, can_share_prefix, token_logprobs

Dtype = Literal["float32", "bfloat16"]
_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# What `save` writes itself; everything else of the directory (tokenizer, template, generation defaults) is copied as it is.
_OWN: Final = ("config.json", "model.safetensors.index.json")
_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".msgpack", ".h5", ".onnx")


class PolicyModel:
    """A loaded model. All methods block: call them from one worker thread.

    The trained parameters are float32; with `dtype="bfloat16"` they are rounded for each computation and in what `save` writes.
    """

    def __init__(self, module: Any, beside: Mapping[str, bytes], *, device: str, dtype: Dtype) -> None:
        self.module = module
        self._beside = dict(beside)  # kept here: the checkpoint that a run was resumed from is removed in time
        self.device = device
        self.dtype: Dtype = dtype
        self.can_share_prefix = can_share_prefix(module)

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        device: str = "cpu",
        dtype: Dtype = "float32",
        gradient_checkpointing: bool = False,
        is_trained: bool = True,
    ) -> PolicyModel:
        """Load a checkpoint directory; ModelLoadError when it isn't one. Not trained: without gradients, as a reference."""
        if not (path / "config.json").is_file():  # transformers would take the name for one on a hub
            raise ModelLoadError(f"{path} is no model directory: it has no config.json")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        try:
            from safetensors import SafetensorError
            from transformers import AutoModelForCausalLM
            from transformers.utils import logging
        except ModuleNotFoundError as missing:
            raise ModelLoadError(f"training needs {missing.name}: pip install 'polynya[train]'") from missing
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            module: Any = AutoModelForCausalLM.from_pretrained(
                path, local_files_only=True, attn_implementation="sdpa", dtype=torch.float32
            )
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as exc:
            raise ModelLoadError(f"{path} can't be loaded: {exc}") from exc
        module = module.to(device).eval().requires_grad_(is_trained)
        model = cls(module, _beside(path), device=device, dtype=dtype)
        if gradient_checkpointing:
            module.gradient_checkpointing_enable()
            module.train()  # transformers recomputes in this mode only
            model.can_share_prefix = False  # nor does it then keep keys and values
        return model

    def token_logprobs(
        self, batch: TokenBatch, *, with_entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`forward.token_logprobs` of this model, in its precision."""
        rounds = self.dtype == "bfloat16"
        with torch.autocast(self.device.split(":")[0], dtype=torch.bfloat16, enabled=rounds):
            return token_logprobs(self.module, batch, with_entropy=with_entropy)

    def save(self, directory: Path) -> None:
        """Write weights, config and the files beside them into a directory that exists; what an engine loads."""
        wanted = _DTYPES[self.dtype]
        state = {name: value.detach().to("cpu", wanted) for name, value in self.module.state_dict().items()}
        self.module.config.dtype = wanted
        self.module.save_pretrained(directory, state_dict=state)
        for name, data in self._beside.items():
            (directory / name).write_bytes(data)

    def master(self) -> dict[str, torch.Tensor]:
        """The float32 weights, where `save` rounds them; empty where it doesn't."""
        if self.dtype == "float32":
            return {}
        return {name: value.detach().cpu() for name, value in self.module.named_parameters()}

    def restore_master(self, weights: dict[str, torch.Tensor]) -> None:
        """Take back what `master` gave."""
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                if name in weights:
                    parameter.copy_(weights[name])


def _beside(path: Path) -> dict[str, bytes]:
    """The files of a model directory that aren't weights or written by `save`, by name."""
    files = (f for f in sorted(path.iterdir()) if f.is_file() and f.name not in _OWN and f.suffix not in _WEIGHTS)
    return {file.name: file.read_bytes() for file in files}
