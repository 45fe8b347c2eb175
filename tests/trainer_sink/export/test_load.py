"""What is exported is read by the tools that people train with: `datasets`, offline, and chat templates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bus.memory import MemoryBus
from schemas.records import ScoredTrajectory
from tests.trainer_sink.export.talks import BASH, READ, SYSTEM, USER, call, calls, result, run, says, talk, tool, traced
from trainer_sink.export.dataset import Layout, Maker, Split, export_dataset
from trainer_sink.export.examples import Acceptance
from trainer_sink.export.preferences import PreferenceRows
from trainer_sink.export.sft import SftRows
from trainer_sink.export.shape import Shape
from trainer_sink.export.traces import TraceRows

OBJECTS_ONLY = (
    "{% for t in tools or [] %}{{ t.function.name }}{% for n, p in t.function.parameters.properties|items %} {{ n }}{% endfor %}"
    "{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content + '' }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}{% for k, v in c.function.arguments|items %} {{ k }}={{ v|tojson }}{% endfor %}{% endfor %}{% endfor %}"
)
"""A template in the manner of those that go through a call's arguments one by one."""

TINY_MODEL = Path(__file__).parents[3] / "compose" / "demo" / "model"

Load = Callable[..., Any]

pytestmark = pytest.mark.timeout(300)  # whichever test is the first one imports datasets, pandas and transformers


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """`datasets.load_dataset` without a network, with a cache of the test's own."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    import datasets
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()

    def read(*arguments: Any, **options: Any) -> Any:
        return datasets.load_dataset(*map(str, arguments), cache_dir=str(tmp_path / "cache"), **options)

    return read


@pytest.fixture(scope="session")
def qwen3() -> Any:
    """Qwen3's own tokenizer and chat template."""
    from transformers import PreTrainedTokenizerFast

    from compose.cpu_engine.tiny_model import ensure_tokenizer

    directory = ensure_tokenizer()
    template = json.loads((directory / "tokenizer_config.json").read_text())["chat_template"]
    return PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"), chat_template=template)


@pytest.fixture(scope="session")
def tiny() -> Any:
    """The tokenizer and template of the demo's model."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(TINY_MODEL)


def sessions() -> list[ScoredTrajectory]:
    """Whatever may stand side by side: no tools, other tools, arguments whose types differ, unicode, empty and null content."""
    odd = [
        USER,
        calls(call("bash", {"limit": "ten", "flags": [1, "a"]}), content=None),
        result(""),
        says("\u2028 é \x00 \ud800"),
    ]
    return [
        run("a", 0, {"role": "user", "content": "?"}, says("!")),
        run("b", traces=[traced([USER, says("hm")], tools=[])]),
        run("c", 0, *talk(path="a")),
        run("d", traces=[traced([*odd], tools=[BASH, READ])]),
        run("e", 0, *talk(steps=30)),
        run(
            "f",
            traces=[
                traced([SYSTEM, USER, calls(call("x", {"limit": {"deep": None}}), content="Now.")], tools=[tool("x")])
            ],
        ),
    ]


async def export(bus: MemoryBus, target: Path, maker: Maker, layout: Layout | None = None, *records: Any) -> None:
    for record in records or sessions():
        await bus.publish(record)
    await export_dataset(bus, target, maker, layout or Layout())


def plain(value: Any) -> Any:
    """Without keys that are null, as columns fill them in."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if v is not None}
    return [plain(v) for v in value] if isinstance(value, list) else value


def expected(maker: SftRows) -> dict[str, Any]:
    """The conversations by task, as the export made them."""
    from trainer_sink.export.examples import examples_of

    found = {s.task_id: examples_of(s, maker.choice, maker.shape).taken[0].conversation for s in sessions()}
    return {task: (c.messages, c.tools) for task, c in found.items()}


@pytest.mark.parametrize("arguments", ["string", "object"])
@pytest.mark.parametrize("kind", ["file", "jsonl", "parquet"])
async def test_conversations_come_back_exactly_and_render(
    bus: MemoryBus, tmp_path: Path, load: Load, qwen3: Any, *, kind: Any, arguments: Any
) -> None:
    """Messages and tools as they were, also where keys and types differ from row to row, and a template takes each."""
    maker = SftRows(shape=Shape(arguments=arguments))
    target = tmp_path / ("x.jsonl" if kind == "file" else "x")
    await export(bus, target, maker, Layout(format="parquet" if kind == "parquet" else "jsonl"))
    data = load("json", data_files=str(target), split="train") if kind == "file" else load(target, split="train")
    known = expected(maker)
    assert sorted(data["task_id"]) == sorted(known)
    for row in data:
        messages, tools = known[row["task_id"]]
        assert plain(row["messages"]) == plain(messages)
        assert row["tools"] == tools
        text = qwen3.apply_chat_template(row["messages"], tools=row["tools"] or None, tokenize=False)
        assert text == qwen3.apply_chat_template(messages, tools=tools or None, tokenize=False)
        if arguments == "object":
            qwen3.apply_chat_template(row["messages"], tools=row["tools"], chat_template=OBJECTS_ONLY, tokenize=False)


async def test_ids_of_an_example(bus: MemoryBus, tmp_path: Path, load: Load, qwen3: Any, tiny: Any) -> None:
    """What a trainer does with a row: ids that hold every word of it."""
    await export(bus, tmp_path / "x", SftRows(), None, run("a", 0, *talk("Ünïcode \U0001f600.", steps=3)))
    (row,) = load(tmp_path / "x", split="train")
    for tokenizer in (qwen3, tiny):
        whole = tokenizer.apply_chat_template(row["messages"], tools=row["tools"], tokenize=True, return_dict=True)
        text = tokenizer.decode(whole["input_ids"])
        assert all(
            word in text for word in ("größe.py", "Ünïcode \U0001f600.", '"limit": 2', "line 2 → é", '"name": "read"')
        )


async def test_types_are_inferred_right_from_the_first_megabytes(bus: MemoryBus, tmp_path: Path, load: Load) -> None:
    """A file of more than a reader's block, whose only calls, tools and reasoning would stand at its end."""
    words = "word " * 80_000
    records = [run(f"a{n:02}", traces=[traced([USER, says(f"{n} {words}")], tools=[])]) for n in range(30)]
    records += [run("z", 0, *talk(steps=3)), run("zz", traces=[traced(talk("2"), tools=[BASH])])]
    await export(bus, tmp_path / "f.jsonl", SftRows(), None, *records)
    assert (tmp_path / "f.jsonl").stat().st_size > 11 << 20
    data = load("json", data_files=str(tmp_path / "f.jsonl"), split="train")
    rows = {row["task_id"]: row for row in data}
    assert len(rows) == 32
    assert plain(rows["z"]["messages"]) == talk(steps=3)
    assert (rows["z"]["tools"], rows["zz"]["tools"], rows["a00"]["tools"]) == ([READ], [BASH], [])


async def test_tools_as_text(bus: MemoryBus, tmp_path: Path, load: Load) -> None:
    """For readers that have no type for JSON."""
    await export(bus, tmp_path / "x", SftRows(shape=Shape(tools="string")), Layout(format="parquet"))
    data = load("parquet", data_files=str(tmp_path / "x" / "data" / "*.parquet"), split="train")
    tools = {row["task_id"]: json.loads(row["tools"]) for row in data}
    assert tools == {task: known for task, (_, known) in expected(SftRows()).items()}


async def test_splits_and_images(bus: MemoryBus, tmp_path: Path, load: Load) -> None:
    """Both splits of a directory; contents of text and images side by side."""
    look = {
        "role": "user",
        "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x:y"}}],
    }
    records = [run(f"t{n}", 0, *([look, says(f"b{n}")] if n % 2 else talk(f"{n}"))) for n in range(12)]
    layout = Layout(split=Split(validation=0.4))
    await export(bus, tmp_path / "x", SftRows(shape=Shape(images="keep")), layout, *records)
    data = load(tmp_path / "x")
    assert set(data) == {"train", "validation"}
    assert sum(len(split) for split in data.values()) == 12
    assert not set(data["train"]["task_id"]) & set(data["validation"]["task_id"])
    row = next(r for split in data.values() for r in split if r["task_id"] == "t1")
    assert row["messages"] == [look, {"role": "assistant", "content": [{"type": "text", "text": "b1"}]}]


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
async def test_pairs(bus: MemoryBus, tmp_path: Path, load: Load, qwen3: Any, *, format_: Any) -> None:
    """The prompt and either answer render as one conversation."""
    records = [run("t", i, *talk(f"try {i}", steps=i), group_size=2, reward=float(i)) for i in range(2)]
    await export(bus, tmp_path / "x", PreferenceRows(), Layout(format=format_), *records)
    (row,) = load(tmp_path / "x", split="train")
    for side, i in (("chosen", 1), ("rejected", 0)):
        whole = row["prompt"] + row[side]
        assert plain(whole) == talk(f"try {i}", steps=i)
        assert f"try {i}" in qwen3.apply_chat_template(whole, tools=row["tools"], tokenize=False)


async def test_traces(bus: MemoryBus, tmp_path: Path, load: Load) -> None:
    """Tokens, masks and log-probabilities, as columns of numbers."""
    await export(bus, tmp_path / "x", TraceRows(), Layout(format="parquet", licence="apache-2.0"))
    data = load(tmp_path / "x", split="train")
    row = data[0]
    assert (row["prompt_ids"], row["response_ids"], row["loss_mask"]) == ([1, 2], [3] * 4, [1] * 4)
    assert (row["logprobs"], row["reward"], row["ended_at"].year) == ([-0.5] * 4, 1.0, 2023)
    assert json.loads(row["messages"])[0]["role"] == "user"


async def test_the_card(bus: MemoryBus, tmp_path: Path) -> None:
    """Its front matter is YAML as the hub wants it, and its numbers are right."""
    import yaml

    await export(bus, tmp_path / "x", SftRows(), Layout(licence="apache-2.0", split=Split(validation=0.4)))
    _, front, body = (tmp_path / "x" / "README.md").read_text().split("---\n", 2)
    card = yaml.safe_load(front)
    assert (card["license"], card["size_categories"]) == ("apache-2.0", ["n<1K"])
    assert card["configs"][0]["data_files"][0] == {"split": "train", "path": "data/train-*"}
    splits = {s["name"]: s for s in card["dataset_info"]["splits"]}
    assert sum(s["num_examples"] for s in splits.values()) == 6
    size = (tmp_path / "x" / "data" / "train-00000-of-00001.jsonl").stat().st_size
    assert splits["train"]["num_bytes"] == size
    assert "| `messages` | list of json |" in body


@pytest.mark.deep
async def test_trl_finds_the_prompt_in_both_answers(bus: MemoryBus, tmp_path: Path, load: Load, qwen3: Any) -> None:
    """Its explicit-prompt form, with calls and tools."""
    from trl.data_utils import apply_chat_template, is_conversational

    records = [run("t", i, *talk(f"try {i}", steps=i), group_size=2, reward=float(i)) for i in range(2)]
    await export(bus, tmp_path / "x", PreferenceRows(), None, *records)
    (row,) = load(tmp_path / "x", split="train")
    assert is_conversational(row)
    texts = apply_chat_template({k: row[k] for k in ("prompt", "chosen", "rejected")}, qwen3, tools=row["tools"])
    assert texts["prompt"].endswith("<|im_start|>assistant\n")
    assert texts["chosen"].count("<tool_call>") == 1
    assert texts["rejected"].count("<tool_call>") == 0


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["sft", "preferences"])
async def test_trl_trains_on_it(bus: MemoryBus, tmp_path: Path, load: Load, tiny: Any, *, kind: str) -> None:
    """A step of a real SFTTrainer and of a real DPOTrainer, whose own preparation of data takes our columns as they are."""
    import torch
    from transformers import AutoModelForCausalLM
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    maker = SftRows(acceptance=Acceptance(min_reward=None)) if kind == "sft" else PreferenceRows()
    records = [run(f"t{n}", i, *talk(f"{n}/{i}"), group_size=2, reward=float(i)) for n in range(4) for i in range(2)]
    await export(bus, tmp_path / "x", maker, None, *records)
    config, trainer = (SFTConfig, SFTTrainer) if kind == "sft" else (DPOConfig, DPOTrainer)
    made = trainer(
        model=AutoModelForCausalLM.from_pretrained(TINY_MODEL, dtype=torch.float32),
        processing_class=tiny,
        train_dataset=load(tmp_path / "x", split="train"),
        args=config(
            output_dir=str(tmp_path / "out"),
            max_steps=1,
            logging_steps=1,
            per_device_train_batch_size=2,
            learning_rate=0.01,
            max_length=4096,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
        ),
    )
    assert len(made.train_dataset) == (8 if kind == "sft" else 4)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        loss = made.train().training_loss
    finally:
        torch.set_num_threads(threads)
    assert 0 < loss < 20
