"""Makes a model with random weights: a Hugging Face folder as the worker reads it.

    python -m prl_torch.make FOLDER '{"model_type": "qwen3", "hidden_size": 1024, …}'
"""

import json
import sys
from typing import Any

import torch
import transformers

# The shape of Qwen3-0.6B.
QWEN3_06B = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 65536,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "tie_word_embeddings": True,
}


def make(folder: str, config: dict[str, Any], seed: int = 0) -> None:
    """Writes config.json and model.safetensors, the weights in float32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config), dtype=torch.float32)
    model.save_pretrained(folder)


if __name__ == "__main__":
    make(sys.argv[1], json.loads(sys.argv[2]))
