"""Makes tiny models as transformers saves them, and prints their logits: pretrained.py FOLDER VOCABULARY '[1, 2, 3]'.

One line of JSON: of each model its folder's name and its logits [tokens × vocabulary], in hex of little-endian float32.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config, utils

folder, vocabulary, tokens = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
sizes = dict(
    vocab_size=vocabulary, hidden_size=24, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40,
    max_position_embeddings=64, initializer_range=0.3, tie_word_embeddings=True,
)  # fmt: skip
models = {
    "llama": (LlamaConfig(**sizes), torch.float32),
    "llama-head-dim": (LlamaConfig(**sizes | dict(head_dim=10, rms_norm_eps=1e-5)), torch.float32),
    "qwen3": (Qwen3Config(**sizes, head_dim=10, rope_parameters={"rope_type": "default", "rope_theta": 1e6}), torch.float32),
    "qwen3-bfloat16": (Qwen3Config(**sizes, head_dim=10), torch.bfloat16),
    "qwen3-untied": (Qwen3Config(**sizes | dict(head_dim=10, tie_word_embeddings=False)), torch.float32),
}

utils.logging.disable_progress_bar()
torch.manual_seed(1)
logits = {}
for name, (config, dtype) in models.items():
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.uniform_(0.5, 1.5)  # norms other than one
    model.to(dtype).save_pretrained(f"{folder}/{name}")
    model = AutoModelForCausalLM.from_pretrained(f"{folder}/{name}", dtype=torch.float32, local_files_only=True)
    with torch.no_grad():
        logits[name] = model(torch.tensor([tokens])).logits[0].numpy().astype("<f4").tobytes().hex()
print(json.dumps(logits))
