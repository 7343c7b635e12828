package logs

// Keys of what a line is about. Every line of a stage has the first three; the others are there where it is about one.
const (
	Run      = "run"
	Stage    = "stage"
	Instance = "instance"
	Env      = "env"
	Eval     = "eval"
	Group    = "group"   // id of the group
	Rollout  = "rollout" // index in its group
	TraceID  = "trace_id"
)

// Keys is the table of all keys: what each says, everywhere the same. A key that is in no row may be used for what no row
// says.
var Keys = []struct{ Key, Says string }{
	{Run, "the run's name"},
	{Stage, "the stage, by its name in the flow"},
	{Instance, "the process, by the name that survives restarts (--instance)"},
	{Env, "the environment"},
	{Eval, "the eval; left out for training"},
	{Group, "id of the group"},
	{Rollout, "index of the rollout in its group"},
	{TraceID, "the rollout's trace, where it is traced (section [tracing])"},
	{"task_index", "index of the task in its split"},
	{"step", "the training step"},
	{"version", "the policy version"},
	{"policy", "a frozen policy"},
	{"topic", "topic, without the run's prefix where it is one of the run's"},
	{"partition", "partition of the topic"},
	{"record", "a record as topic/partition@offset"},
	{"error", "what went wrong"},
	{"fault", "its name on the page, in alerts and in the runbook (deploy/prometheus/README.md)"},
	{"server", "URL of a server that is asked"},
	{"addr", "address at which this process listens"},
	{"file", "path of a file"},
	{"path", "path of a URL"},
}

// Instead are words that could be used for what a row of Keys says, and are not.
var Instead = map[string]string{
	"run_name": Run, "run_id": Run, "job": Run,
	"stage_name": Stage, "component": Stage,
	"instance_id": Instance, "host": Instance,
	"environment": Env, "env_name": Env,
	"group_id": Group, "gid": Group,
	"rollout_index": Rollout, "rollout_id": Rollout, "index": Rollout,
	"trace": TraceID, "traceid": TraceID, "traceID": TraceID, "traceId": TraceID,
	"policy_version": "version", "frozen": "policy",
	"err": "error", "cause": "error",
	"address": "addr", "listen": "addr", "filename": "file",
}
