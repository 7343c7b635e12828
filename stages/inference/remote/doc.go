// Package remote serves the policy on servers of other makes: the inference stage stands beside vLLM or SGLang servers,
// gives them each policy version as it is published, and answers with token ids, log-probabilities and the version of every
// token as the native backend does (I3, I7).
//
// Hard guarantees, each with a test:
//   - A server gets requests only while it holds the version that the stage was told to load last, after that version's
//     record. It is asked what it holds (a label that the stage sets, and only after the weights were loaded) when it is
//     taken on, after every load, and at every look; and the label comes back with every completion, so that a server which
//     was started anew between two looks serves nothing either: what it answered is thrown away and asked elsewhere.
//   - No token is labelled with a newer version than sampled it. The servers say themselves which label stood while a token
//     was sampled, and the label changes only while they sample nothing: after the pause is complete, before they go on.
//   - Keys and values of old weights are never used with new ones: caches are emptied during the pause. Requests that are
//     kept over it are computed again from their first token.
//   - Log-probabilities are those after temperature. A server that gives others is not used.
//   - A request gets one answer. What a server that died had sampled is dropped, and another one is asked with the same seed.
//   - Nothing waits for a server without a deadline.
//
// Optimisations: a conversation stays with one server, where its beginning is cached; so do the rollouts of a group, which
// begin alike. A server that has too much gives them up to the one with the least.
//
// Where one version is not enough, requests with a pin go to servers set aside (inference.remote.eval_urls).
//
// What is known of the servers was read from the sources of these versions, and the tests' stand-ins speak it:
//
//   - vLLM 0.32.0, started with VLLM_SERVER_DEV_MODE=1 and --logprobs-mode processed_logprobs:
//     vllm/entrypoints/scale_out/token_in_token_out/{api_router,protocol,serving}.py (POST /inference/v1/generate, whose
//     choices carry weight_versions), vllm/entrypoints/rl/online/api_router.py (/pause, /resume, /update_weight_version,
//     /weight_info), vllm/entrypoints/serve/dev/rpc/api_router.py (/collective_rpc, which calls reload_weights of
//     vllm/v1/worker/gpu_worker.py), vllm/v1/engine/{core,output_processor}.py (what a pause waits for; labels of tokens),
//     vllm/v1/sample/sampler.py (logprobs_mode), vllm/sampling_params.py.
//   - SGLang 0.5.23: sglang/srt/entrypoints/http_server.py (/generate, /pause_generation, /continue_generation,
//     /update_weights_from_disk, /update_weight_version, /model_info, /health), sglang/srt/managers/io_struct.py,
//     sglang/srt/managers/scheduler.py (a pause that retracts requests takes in what was sampled before it returns; one
//     that leaves them in place does not, and would label a token too new), sglang/srt/utils/weight_versions.py,
//     sglang/srt/layers/sampler.py (SGLANG_RETURN_ORIGINAL_LOGPROB), sglang/srt/managers/schedule_batch.py (stop tokens).
//   - OpenAI's /v1/completions as vLLM 0.32.0 serves it (return_token_ids), of a model that is not trained.
//
// What differs from the native backend: seeds do not make a completion independent of what else is served (SGLang heeds them
// only with --enable-deterministic-inference), top_p below 1 gives log-probabilities after top_p, probes are at temperature 1,
// and completions come whole (the servers attribute tokens to versions at their end).
//
// Weights are not sent over the network between the accelerators of trainer and servers (NCCL): they go through a folder that
// both see.
package remote
