"""The script that most people write first: eager attentions of everything, then a loop of SVDs.

It is the other side of ``benchmark_spectra`` and uses nothing of rankscope.
Usage: python _naive_spectra.py MODEL_FOLDER TEXT_FILE LENGTH WINDOWS OUT.npz
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer


def main() -> None:
    """Cumulative ratios of every window, layer and head into an .npz file."""
    folder, text_file, length, windows, out = sys.argv[1:]
    n, count = int(length), int(windows)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with open(text_file, encoding="utf-8", newline="") as file:
        text = file.read()
    stream = tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
    ratios = []
    for i in range(count):
        content = stream[i * (n - 2) : (i + 1) * (n - 2)]
        ids = torch.tensor([[tokenizer.cls_token_id, *content, tokenizer.sep_token_id]])
        with torch.no_grad():
            attentions = model(ids, output_attentions=True).attentions
        for layer in attentions:
            for head in layer[0]:
                values = np.linalg.svd(head.double().numpy(), compute_uv=False)
                ratios.append(np.cumsum(values) / values.sum())
    shape = (count, len(attentions), attentions[0].shape[1], n)
    np.savez(out, cumulative_ratio=np.array(ratios).reshape(shape))


if __name__ == "__main__":
    main()
