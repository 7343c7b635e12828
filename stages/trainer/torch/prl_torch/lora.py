"""Low-rank adapters (peft's): they are what is trained and published, and the model under them stays as it is."""

import json
from typing import Any

import torch
from torch import nn

ADAPTER = "default"  # peft's name for the only one there is
PREFIX = "base_model.model."  # of the tensors in peft's files

# A new adapter changes nothing, and its first factors are the same in every process of a run.
SEED = 0


def inject(model: nn.Module, settings: dict[str, Any]) -> str:
    """Puts an adapter into the linear layers that settings, peft's and seed, name: all but the head if target_modules is
    left out. Returns peft's adapter_config.json."""
    from peft import LoraConfig, inject_adapter_in_model  # slow to import, and seldom needed

    settings = {"target_modules": "all-linear", **settings, "task_type": "CAUSAL_LM"}
    seed = settings.pop("seed", SEED)
    if settings.get("bias", "none") != "none" or settings.get("modules_to_save") or settings.get("lora_dropout"):
        raise ValueError("lora: bias, modules_to_save and lora_dropout are not supported")
    config = LoraConfig(**settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model)
    if any("lora_" in name for m in (model.get_output_embeddings(), model.get_input_embeddings()) for name, _ in m.named_parameters()):
        raise ValueError("lora: an adapter of the embeddings or the head is not supported")
    return json.dumps(_plain(model, config.to_dict()), sort_keys=True)


def _plain(model: nn.Module, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with target modules by their last names, as inference servers want them, where these say the same."""
    config = {k: sorted(v) if isinstance(v, set) else v for k, v in config.items()}
    adapted = {name for name, m in model.named_modules() if hasattr(m, "lora_A")}
    short = {name.rsplit(".", 1)[-1] for name in adapted}
    if adapted == {name for name, _ in model.named_modules() if name.rsplit(".", 1)[-1] in short}:
        config["target_modules"] = sorted(short)
    return config


def published(name: str) -> str:
    """The name of a trained parameter in peft's files."""
    return PREFIX + name.replace(f".{ADAPTER}.", ".")
