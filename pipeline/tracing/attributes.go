package tracing

import (
	"strings"

	"go.opentelemetry.io/otel/attribute"
)

// Names of the attributes of spans. Those that logs have too have the same last part there.
const (
	Run        = attribute.Key("prl.run")
	Stage      = attribute.Key("prl.stage")
	Instance   = attribute.Key("service.instance.id")
	Env        = attribute.Key("prl.env")
	Eval       = attribute.Key("prl.eval")
	Group      = attribute.Key("prl.group")
	GroupSize  = attribute.Key("prl.group_size")
	Index      = attribute.Key("prl.rollout")
	Attempt    = attribute.Key("prl.attempt")
	TaskIndex  = attribute.Key("prl.task_index")
	Step       = attribute.Key("prl.step")
	Version    = attribute.Key("prl.version")
	Policy     = attribute.Key("prl.policy")       // a frozen one
	Start      = attribute.Key("prl.policy_start") // lowest version that sampled a token
	Call       = attribute.Key("prl.call")         // number of the model call in its rollout
	Try        = attribute.Key("prl.try")
	Reward     = attribute.Key("prl.reward")
	Advantage  = attribute.Key("prl.advantage") // mean over the trained tokens
	Fate       = attribute.Key("prl.fate")
	Filter     = attribute.Key("prl.filter")
	Stop       = attribute.Key("prl.stop_reason")
	Truncated  = attribute.Key("prl.truncated")
	Turns      = attribute.Key("prl.turns")
	Tokens     = attribute.Key("prl.tokens")
	Samples    = attribute.Key("prl.samples")
	Batches    = attribute.Key("prl.micro_batches")
	Queue      = attribute.Key("prl.queue_seconds")   // of a request, until it was begun
	Prefill    = attribute.Key("prl.prefill_seconds") // from then to the first token
	Decode     = attribute.Key("prl.decode_seconds")  // from there to the last
	Skipped    = attribute.Key("prl.skipped")         // the gradient was not finite
	LeftOut    = attribute.Key("prl.spans_left_out")
	PromptTok  = attribute.Key("gen_ai.usage.input_tokens")
	SampledTok = attribute.Key("gen_ai.usage.output_tokens")
	CachedTok  = attribute.Key("gen_ai.usage.cache_read.input_tokens")
	Finish     = attribute.Key("gen_ai.response.finish_reasons")
	Address    = attribute.Key("server.address")
	ErrorType  = attribute.Key("error.type")
)

// maxText bounds a text of a span; texts may be of models and environments.
const maxText = 1 << 10

// clean is a text as spans can hold it.
func clean(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxText)], "\uFFFD")
}
