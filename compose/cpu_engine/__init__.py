"""A small inference server for CPUs that speaks SGLang's protocol where this project uses it.

In: HTTP requests to `/generate`, the control routes and `/v1/tokenize`. Out: token ids, their log-probabilities and the
weight versions that made them. The model is a Hugging Face directory; optionally a Python function chooses the text of
each reply (`scripted:MODULE:FUNCTION`) while ids and log-probabilities still come from the model.

`EngineSettings` and `main` start it; `ensure_tiny_model` builds the demo model. Importing this package does not import torch.
"""

from __future__ import annotations

from compose.cpu_engine.settings import EngineSettings
from compose.cpu_engine.tiny_model import ensure_tiny_model

__all__ = ["EngineSettings", "ensure_tiny_model"]
