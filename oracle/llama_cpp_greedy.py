"""Loads a GGUF file with a real llama.cpp (PyPI xllamacpp) and continues prompts greedily.

    llama_cpp_greedy.py MODEL.gguf --tokens N --prompt 2,10,11 [--prompt ...]

stdout gets one JSON object a prompt: `tokens`, the greedy ids, and `likeliest`, for each of them the
likeliest tokens as [id, natural logarithm of its probability].
"""

import argparse
import json
import sys

import xllamacpp


def open_model(path: str) -> xllamacpp.Server:
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = 2048
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.warmup = False
    return xllamacpp.Server(params)


def continued(server: xllamacpp.Server, prompt: list[int], count: int) -> dict:
    answer = server.handle_completions(
        {
            "prompt": prompt,
            "max_tokens": count,
            "temperature": 0.0,
            "ignore_eos": True,
            "logprobs": 20,
            "cache_prompt": False,
        }
    )
    if "choices" not in answer:
        raise RuntimeError(f"prompt of {len(prompt)} tokens: {answer}")
    steps = answer["choices"][0]["logprobs"]["content"]
    return {
        "tokens": [step["id"] for step in steps],
        "likeliest": [[[t["id"], t["logprob"]] for t in step["top_logprobs"]] for step in steps],
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--prompt", action="append", required=True)
    arguments = parser.parse_args()

    server = open_model(arguments.model)
    for prompt in arguments.prompt:
        ids = [int(token) for token in prompt.split(",")]
        print(json.dumps(continued(server, ids, arguments.tokens)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
