"""What transformers' own class computes with the weights of a packed checkpoint.

    dequantized_model.py FOLDER --tokens 2,10,11 --generate 8 --out FILE.safetensors

Unpacks every module itself (code times scale, in float32), stacks experts, and loads the result into
the class that config.json names, key by key. FILE gets `logits` (f32 [tokens + generate - 1,
vocabulary], no cache) and `ids` (i64 [generate]), the greedy continuation.
"""

import argparse
import re
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

GROUP = 32


def unpack(words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """`[out, in / 8]` words and `[out, in / 32]` scales to `[out, in]` values."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int64)
    nibbles = (words.to(torch.int64).unsqueeze(-1) >> shifts) & 15
    codes = (nibbles - 8).reshape(words.shape[0], -1, GROUP).float()
    return (codes * scales.float().unsqueeze(-1)).reshape(words.shape[0], -1)


def dense_weights(folder: Path) -> dict[str, torch.Tensor]:
    tensors = load_file(folder / "model.safetensors")
    dense = {}
    for name, tensor in tensors.items():
        if name.endswith(".weight_packed"):
            module = name.removesuffix(".weight_packed")
            dense[f"{module}.weight"] = unpack(tensor, tensors[f"{module}.weight_scale"])
        elif not name.endswith((".weight_scale", ".weight_shape")):
            dense[name] = tensor.float()
    return stack_experts(dense)


def stack_experts(dense: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """`experts.3.gate_proj.weight` and its like to the two parameters that transformers has."""
    experts: dict[str, dict[int, dict[str, torch.Tensor]]] = {}
    others = {}
    for name, tensor in dense.items():
        found = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.weight", name)
        if found:
            experts.setdefault(found[1], {}).setdefault(int(found[2]), {})[found[3]] = tensor
        else:
            others[name] = tensor
    for name, parts in experts.items():
        in_order = [parts[number] for number in range(len(parts))]
        gate_up = [torch.cat([part["gate_proj"], part["up_proj"]]) for part in in_order]
        others[f"{name}.gate_up_proj"] = torch.stack(gate_up)
        others[f"{name}.down_proj"] = torch.stack([part["down_proj"] for part in in_order])
    return others


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--generate", type=int, required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    config = AutoConfig.from_pretrained(arguments.folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    missing, unexpected = model.load_state_dict(dense_weights(arguments.folder), strict=False)
    # The head is the embedding table.
    if set(missing) - {"lm_head.weight"} or unexpected:
        print(f"missing {missing}, unexpected {unexpected}", file=sys.stderr)
        return 1
    model.tie_weights()
    model.eval()

    ids = [int(token) for token in arguments.tokens.split(",")]
    prompt = len(ids)
    with torch.no_grad():
        for _ in range(arguments.generate):
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
            ids.append(int(logits[-1].argmax()))
    generated = torch.tensor(ids[prompt:], dtype=torch.int64)
    save_file({"logits": logits.contiguous(), "ids": generated}, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
