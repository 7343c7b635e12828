// Package lm is a small language model in the shape of Llama or Qwen3 (RMSNorm, rotary positions, grouped-query attention,
// SwiGLU; Qwen3 also norms the heads of queries and keys; float32) that runs, learns and is stored without anything but Go
// and gonum's BLAS.
//
// What it guarantees, each with a test:
//
//   - Batch invariance, bit for bit: the logits of a sequence are the same alone and among others, in any slot of a
//     [Decoder], token by token or in chunks of any size, on any number of CPUs; and [Learner.Score] and the learner's
//     forward pass, on packed rows or alone, give the bits that the decoder and [Sample] gave. So on-policy the
//     importance ratio is exactly 1.
//   - Determinism: the same weights and batches give the same gradients and the same weights, byte for byte, whatever
//     GOMAXPROCS is (on one architecture: where the compiler fuses multiply and add, it does so everywhere alike).
//   - Token exactness: tokens are trained as they were sampled; text is encoded once, when a message is added.
//   - A folder written by [SaveFolder] is a Hugging Face folder, what transformers saves of such a model is read, and
//     [ReadSafetensors] survives any input.
//
// How: every matrix product adds up each element of C over k in ascending order, one rounded product after the other,
// whatever the size of the batch; so no product depends on its neighbours, on tiling, on memory alignment, or on whether
// gonum computes it or the tiles for processors with AVX2, and rows can be spread over CPUs at will. Where the sum runs
// over tokens (weight gradients), the tokens are cut into shards that depend on the batch alone, and the shards' sums are
// added in order.
//
// The loss is a sum of components, each over tokens of its own and divided by their number in the whole step: [RL] (a
// policy gradient with one of the terms [DPPO], [IPO], [PPO], [GSPO] and [TIS]), [CE] and [RefKL]. How a step is cut into
// micro-batches changes nothing but rounding.
//
// The parts: config, configjson and model (parameters), forward, attention, backward, kernels, gemm and exp (the
// arithmetic), batch, loss, rl, policy, imitate and learner (training), adamw and schedule, decoder and sample
// (generation), tokenizer, safetensors and folder.
package lm
