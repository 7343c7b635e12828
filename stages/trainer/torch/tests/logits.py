"""Prints the logits of packed sequences, in hex of little-endian float32: logits.py FOLDER '[[1, 2, 3], [4, 5]]'."""

import json
import sys

import torch

from prl_torch.learner import Learner, Optimizer
from prl_torch.loss import Settings

sequences = json.loads(sys.argv[2])
learner = Learner(sys.argv[1], Settings("dppo", *[0.1] * 10), Optimizer((0.9, 0.95), 1e-8, 0, 1))
tokens = torch.tensor(sum(sequences, []))
positions = torch.cat([torch.arange(len(s)) for s in sequences])
with torch.no_grad():
    logits = learner.logits(tokens, positions, torch.arange(len(tokens)))
print(logits.numpy().astype("<f4").tobytes().hex())
