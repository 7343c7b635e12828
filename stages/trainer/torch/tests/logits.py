"""Prints the logits of packed sequences, in hex of little-endian float32, a line for each folder: logits.py '[[1, 2, 3], [4, 5]]' FOLDER…"""

import json
import sys

import torch

from prl_torch.learner import Learner, Optimizer
from prl_torch.loss import Settings

sequences = json.loads(sys.argv[1])
for folder in sys.argv[2:]:
    learner = Learner(folder, Settings("dppo", *[0.1] * 10), Optimizer((0.9, 0.95), 1e-8, 0, 1))
    with torch.no_grad():
        logits = learner.logits(torch.tensor(sum(sequences, [])), [len(s) for s in sequences])
    print(logits.numpy().astype("<f4").tobytes().hex())
