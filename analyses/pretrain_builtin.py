"""Train the built-in model: a small RoBERTa that the project ships, so that all works offline.

Trains a byte-level BPE tokenizer and a ``RobertaForMaskedLM`` on a folder of English text, tests it
on held-out text as it goes, and exports weights (fp16), configuration, tokenizer and log. Batches
depend on the seed and the step alone, so a run that was stopped resumes exactly. A file `finish` in
the work folder, or SIGTERM, brings the learning rate to zero within ``--finish-steps`` and exports.
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analyses._pretraining import (
    VALIDATION_FILE,
    Batch,
    Ids,
    Shape,
    Start,
    batch_at,
    encode,
    held_out,
    held_out_loss,
    loss_of,
    new_model,
    parameter_groups,
    train_tokenizer,
    training_texts,
    unigram_loss,
)

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase, RobertaForMaskedLM

COLUMNS = ("step", "tokens", "seconds", "rate", "length", "train", "valid_128", "valid_512")


@dataclass(frozen=True)
class Plan:
    """The recipe: a budget of tokens, and what the learning rate and the windows do over it."""

    tokens: int = 6_400_000
    batch_tokens: int = 1024
    short: int = 128
    long: int = 512
    long_from: float = 0.4  # share of the budget after which windows are long
    peak: float = 7e-4
    warm_up: int = 300
    decay_from: float = 0.5  # share of the budget after which the rate falls to zero
    finish_steps: int = 500
    masked: tuple[float, float] = (0.4, 0.25)  # share of pieces to predict; short, long windows
    hidden: tuple[float, float] = (1.0, 0.8)  # share of these under <mask>; the rest half random
    moved: float = 0.5  # share of short windows at a random place of the position table
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    half: bool = True  # bfloat16 products; weights and sums stay float32

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole budget."""
        return max(1, self.tokens // self.batch_tokens)


@dataclass
class State:
    """All that a resume needs beside the plan."""

    model: RobertaForMaskedLM
    optimizer: torch.optim.Optimizer
    step: int = 0
    finish_from: int | None = None  # step at which an early end was asked for
    seconds: float = 0.0
    rows: list[dict[str, float]] = field(default_factory=list)


def learning_rate(plan: Plan, step: int, finish_from: int | None = None) -> float:
    """Rate of a step: linear warm-up, constant, linear decay to zero; an early end decays at once.

    >>> plan = Plan(tokens=1000 * 1024, warm_up=10, decay_from=0.5, peak=1.0, finish_steps=100)
    >>> [round(learning_rate(plan, s), 3) for s in (0, 9, 400, 750, 999)]
    [0.1, 1.0, 1.0, 0.5, 0.002]
    >>> round(learning_rate(plan, 250, finish_from=200), 3)
    0.5
    """
    if finish_from is not None:
        left = 1 - (step - finish_from) / plan.finish_steps
        return learning_rate(plan, finish_from) * max(0.0, left)
    fall = plan.steps * (1 - plan.decay_from)
    return plan.peak * min(1.0, (step + 1) / plan.warm_up, max(0.0, (plan.steps - step) / fall))


def last_step(plan: Plan, finish_from: int | None) -> int:
    """The step at which the run is over."""
    return plan.steps if finish_from is None else min(plan.steps, finish_from + plan.finish_steps)


def window_length(plan: Plan, step: int, finish_from: int | None = None) -> int:
    """Short windows first; long ones in the last part and during an early end."""
    late = step >= plan.long_from * plan.steps or finish_from is not None
    return plan.long if late else plan.short


def new_state(shape: Shape, start: Start, plan: Plan, stream: Ids) -> State:
    """Model and optimizer before the first step."""
    import torch

    model = new_model(shape, start, plan.seed, stream)
    groups = parameter_groups(model, plan.weight_decay)
    return State(model, torch.optim.AdamW(groups, lr=plan.peak, betas=(0.9, 0.98), fused=True))


def train_step(state: State, stream: Ids, shape: Shape, plan: Plan) -> float:
    """One optimizer step; returns its loss in nats."""
    import torch

    length = window_length(plan, state.step, state.finish_from)
    late = int(length == plan.long)
    batch = batch_at(
        stream,
        state.step,
        seed=plan.seed,
        rows=plan.batch_tokens // length,
        length=length,
        shape=shape,
        masked=plan.masked[late],
        hidden=plan.hidden[late],
        moved=plan.moved,
    )
    state.model.train()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=plan.half):
        loss = loss_of(state.model, batch)
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(state.model.parameters(), plan.clip)
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate(plan, state.step, state.finish_from)
    state.optimizer.step()
    state.optimizer.zero_grad()
    state.step += 1
    return loss.item()


def save(state: State, path: Path) -> None:
    """Write a checkpoint; the old one stays whole until the new one is complete."""
    import torch

    parts = {
        "model": state.model.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "step": state.step,
        "finish_from": state.finish_from,
        "seconds": state.seconds,
        "rows": state.rows,
    }
    fresh = path.with_suffix(".new")
    torch.save(parts, fresh)
    fresh.replace(path)


def restore(state: State, path: Path) -> None:
    """Bring a new state to that of a checkpoint."""
    import torch

    parts = torch.load(path, weights_only=True)
    state.model.load_state_dict(parts["model"])
    state.optimizer.load_state_dict(parts["optimizer"])
    for name in ("step", "finish_from", "seconds", "rows"):
        setattr(state, name, parts[name])


def write_log(rows: Sequence[dict[str, float]], path: Path) -> None:
    """The measured points as CSV: tokens, wall seconds, learning rate, losses in nats."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def run(
    state: State,
    stream: Ids,
    tests: dict[int, Batch],
    shape: Shape,
    plan: Plan,
    work: Path,
    *,
    test_every: int = 500,
    finish_at: int | None = None,
) -> None:
    """Train to the end of the plan or of an early finish, with tests and checkpoints."""
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    losses: list[float] = []
    began = time.monotonic() - state.seconds
    try:
        while state.step < last_step(plan, state.finish_from):
            wanted = asked or state.step == finish_at or (work / "finish").exists()
            if state.finish_from is None and wanted:
                state.finish_from = state.step
                print(f"early finish: {plan.finish_steps} more steps", flush=True)
            losses.append(train_step(state, stream, shape, plan))
            over = state.step >= last_step(plan, state.finish_from)
            if state.step % test_every == 0 or over:
                state.seconds = time.monotonic() - began
                state.rows.append(_measure(state, losses, tests, plan))
                losses.clear()
                write_log(state.rows, work / "log.csv")
                save(state, work / "checkpoint.pt")
            elif state.step % 100 == 0:
                print(f"  step {state.step}  train {sum(losses[-100:]) / 100:.3f}", flush=True)
    finally:
        signal.signal(signal.SIGTERM, before)


def _measure(
    state: State, losses: Sequence[float], tests: dict[int, Batch], plan: Plan
) -> dict[str, float]:
    """One row of the log, also printed."""
    step = state.step
    row = {
        "step": step,
        "tokens": step * plan.batch_tokens,
        "seconds": round(state.seconds, 1),
        "rate": float(f"{learning_rate(plan, step - 1, state.finish_from):.4g}"),
        "length": window_length(plan, step - 1, state.finish_from),
        "train": round(sum(losses) / len(losses), 4),
    }
    for length, batch in tests.items():
        row[f"valid_{length}"] = round(held_out_loss(state.model, batch), 4)
    print("  ".join(f"{name} {value:g}" for name, value in row.items()), flush=True)
    return row


def export(
    model: RobertaForMaskedLM,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[dict[str, float]],
    notes: dict[str, Any],
    folder: Path,
) -> None:
    """Write fp16 weights, configuration, tokenizer, log and recipe into a folder."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    half = copy.deepcopy(model).to(torch.float16)
    half.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_log(rows, folder / "training_log.csv")
    text = json.dumps(notes, indent=2, sort_keys=True) + "\n"
    (folder / "training.json").write_text(text, encoding="utf-8")


def main(argv: Sequence[str]) -> None:
    """Train, or resume, and export."""
    import torch

    options = _options(argv)
    torch.set_num_threads(options.threads)
    work, data = Path(options.work), Path(options.data)
    work.mkdir(parents=True, exist_ok=True)
    plan = Plan(tokens=options.tokens, seed=options.seed, finish_steps=options.finish_steps)
    shape, start = Shape(), Start()
    texts = training_texts(data)
    tokenizer = train_tokenizer(texts, shape.vocabulary)
    stream = np.concatenate([encode(tokenizer, text) for text in texts])
    valid = encode(tokenizer, (data / VALIDATION_FILE).read_text(encoding="utf-8"))
    tests = {n: held_out(valid, length=n, count=16384 // n, seed=0) for n in (128, 512)}
    state = new_state(shape, start, plan, stream)
    notes: dict[str, Any] = {
        "shape": asdict(shape),
        "start": asdict(start),
        "plan": asdict(plan),
        "parameters": sum(p.numel() for p in state.model.parameters()),
        "training_pieces": len(stream),
        "unigram_loss": round(unigram_loss(stream, valid, shape.vocabulary), 4),
    }
    print(json.dumps(notes), flush=True)
    checkpoint = work / "checkpoint.pt"
    if checkpoint.exists() and not options.restart:
        restore(state, checkpoint)
        print(f"resumed at step {state.step}", flush=True)
    run(
        state,
        stream,
        tests,
        shape,
        plan,
        work,
        test_every=options.test_every,
        finish_at=options.finish_at,
    )
    notes |= {
        "finish_at": state.finish_from,
        "steps": state.step,
        "tokens": state.step * plan.batch_tokens,
        "last": state.rows[-1],
    }
    export(state.model, tokenizer, state.rows, notes, Path(options.out))
    print(f"exported to {options.out}", flush=True)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m analyses pretrain_builtin", description=__doc__
    )
    plan = Plan()
    parser.add_argument("--data", default="../shared/data", help="folder of training text")
    parser.add_argument("--work", default="analyses/out/pretraining", help="checkpoint and log")
    parser.add_argument("--out", default="analyses/out/builtin", help="the exported model")
    parser.add_argument("--tokens", type=int, default=plan.tokens, help="budget of the schedule")
    parser.add_argument("--finish-steps", type=int, default=plan.finish_steps)
    parser.add_argument("--finish-at", type=int, help="step at which to finish early")
    parser.add_argument("--seed", type=int, default=plan.seed)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--test-every", type=int, default=500, help="steps between tests")
    parser.add_argument("--restart", action="store_true", help="ignore an existing checkpoint")
    return parser.parse_args(argv)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
