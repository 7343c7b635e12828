"""Say a word backwards, or first count to it with a tool: environments of verifiers v0."""

import os
import signal
import time

import verifiers as vf
from datasets import Dataset

WORDS = ["stone", "river", "candle", "mirror", "window", "garden", "pepper", "silver", "copper", "basket"]


def shout(word: str) -> str:
    """Say a word loudly.

    Args:
        word: which one
    """
    return word.upper()


def load_environment(tools: bool = False, grouped: bool = False, held_out: bool = True):
    def rows(words):
        return Dataset.from_list([{"question": f"Say {w} backwards.", "answer": w[::-1], "info": {"word": w, "fault": ""}} for w in words])

    def correct(completion, answer, info) -> float:
        match info["fault"]:
            case "raise":
                raise RuntimeError("the dictionary is lost")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(3600)
        return float(completion[-1]["content"] == answer)

    def letters(completion) -> float:
        return float(len(completion[-1]["content"]))

    def best(completions) -> list[float]:
        return [0.0 for _ in completions]

    rubric = vf.Rubric(funcs=[correct, letters] + ([best] if grouped else []), weights=[2.0, 0.0] + ([1.0] if grouped else []))
    sets = {"dataset": rows(WORDS)} | ({"eval_dataset": rows([w[1:] for w in WORDS[:4]])} if held_out else {})
    if tools:
        return vf.ToolEnv(tools=[shout], max_turns=4, rubric=rubric, **sets)
    return vf.SingleTurnEnv(rubric=rubric, **sets)
