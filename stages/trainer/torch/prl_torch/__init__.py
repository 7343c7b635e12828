"""The worker of prl's torch learner.

A trainer starts it, hands it micro-batches over a pipe and has it write weights; it knows nothing of runs, topics and blobs.

The parts, each of which uses only those before it: wire (messages), options (what a trainer sets), batch (a micro-batch's
tensors), files (tensors on disk), loss (the formulas), attention (within sequences of a packed row), head (from hidden states
to log-probabilities), lora (adapters), model (the policy), parallel (several processes), optimizer (the update), work (what
was computed), learner (gradients summed, then one update), __main__ (the loop that answers). Beside them make (a model with
random weights) and bench (how fast it trains), which are programs of their own.
"""
