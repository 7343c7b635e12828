"""The worker of prl's torch learner.

A trainer starts it, hands it micro-batches over a pipe and asks it for weights; it knows nothing of runs, topics and blobs.

The parts, each of which uses only those before it: wire (messages), batch (a micro-batch's tensors), loss (the formulas),
learner (model, gradients, optimizer), __main__ (the loop that answers).
"""
