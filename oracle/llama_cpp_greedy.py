"""Loads a GGUF file with a real llama.cpp (PyPI xllamacpp) and continues prompts greedily.

    llama_cpp_greedy.py MODEL.gguf --tokens N --prompt 2,10,11 [--prompt ...] [--text TEXT ...]

stdout gets one JSON object a prompt: `tokens`, the greedy ids, and `steps`, for each of them the
likeliest tokens as [id, log probability]. A --text gives `ids`, what llama.cpp's tokenizer makes of it.
"""

import argparse
import json
import sys

import xllamacpp


def continued(server: xllamacpp.Server, prompt: list[int], count: int) -> dict:
    answer = server.handle_completions(
        {
            "prompt": prompt,
            "n_predict": count,
            "max_tokens": count,
            "temperature": 0.0,
            "ignore_eos": True,
            "n_probs": 20,
            "logprobs": 20,
            "cache_prompt": False,
            "return_tokens": True,
        }
    )
    return answer


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--prompt", action="append", default=[])
    arguments = parser.parse_args()

    params = xllamacpp.CommonParams()
    params.model.path = arguments.model
    params.n_ctx = 512
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.n_gpu_layers = 0
    server = xllamacpp.Server(params)
    for prompt in arguments.prompt:
        ids = [int(token) for token in prompt.split(",")]
        print(json.dumps(continued(server, ids, arguments.tokens)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
