// Package faults is what can go wrong in a run, under one name everywhere: the attribute fault of a log line, a notice of the
// page, the alert rule in deploy/prometheus/alerts.yml and the heading in its runbook (deploy/prometheus/README.md).
//
// It imports nothing of prl. A process keeps those that it has on a [Desk].
package faults

import "slices"

// A Fault is one thing that goes wrong.
type Fault struct {
	Name string // in CamelCase: also the name of the alert
	Says string // what is wrong, in a sentence
	Do   string // what to do, in a sentence or two
}

// All are the faults, the gravest first.
var All = []Fault{
	BrokerDown, NotAuthorized, DiskFull, TrainerOutOfMemory, StageFailed, EnvServerDead, EnvFails, NothingTrained, PolicyStale,
	ModelSlow, PoisonTask, LearningStopped, LagGrows, DeadLetters, DiskFilling, StageDown, StageRestarts,
}

// The faults.
var (
	BrokerDown = Fault{"BrokerDown",
		"No Kafka broker answers.",
		"Look whether the brokers run and can be reached from here (--brokers, kafka.*). Nothing is lost: every stage goes on by itself when they are back."}
	NotAuthorized = Fault{"NotAuthorized",
		"The brokers refuse what a stage has to do, and it has stopped.",
		"Give its user the right that the error names (deploy/kafka/acls.csv lists those of every stage; deploy/kafka/acls.sh grants them), or correct user and password in section [kafka], and start the stage again."}
	DiskFull = Fault{"DiskFull",
		"There is no room left on a disk.",
		"Make room on the disk that the error names, or make it larger; whoever waits for it goes on by itself. prl-stage --stage cleanup deletes what no stage needs any more."}
	TrainerOutOfMemory = Fault{"TrainerOutOfMemory",
		"The trainer has run out of memory.",
		"Make run.seq_len smaller (a new run), set trainer.torch.activation_checkpointing = true, make trainer.torch.head_tokens smaller, train a smaller model or LoRA, or give it more memory; started again the trainer goes on from its last version."}
	StageFailed = Fault{"StageFailed",
		"A stage has stopped with an error.",
		"The error says what to do; started again it goes on where it stopped."}
	EnvServerDead = Fault{"EnvServerDead",
		"No environment server plays an environment of the run.",
		"Start one: prl-stage --stage envserver --env NAME. Its log says why the last one ended; its rollouts are played again."}
	EnvFails = Fault{"EnvFails",
		"Most rollouts of an environment fail.",
		"Read the error, which is the environment's; prl-stage --stage envserver --env NAME --try 20 --url URL plays it alone. envs.NAME.ratio = 0 leaves it out meanwhile."}
	NothingTrained = Fault{"NothingTrained",
		"Groups end, and none of them is trained.",
		"Look at what takes them: where all rewards of a group are the same, make tasks easier or harder, rewards finer or envs.NAME.group_size larger, or set the filter to monitor (scorer.filters.FILTER.mode = \"monitor\")."}
	PolicyStale = Fault{"PolicyStale",
		"Rollouts are played by a policy that is too old to be trained on.",
		"Look whether inference gets the newest version (its log, its disk, its servers); else more environment servers or inference, fewer emitter.permits, or a larger run.max_off_policy_steps."}
	ModelSlow = Fault{"ModelSlow",
		"Rollouts run out of time waiting for the model.",
		"Add inference servers or GPUs, lower envserver.concurrency or envs.NAME.max_tokens, or raise envs.NAME.timeout (and group_timeout with it)."}
	PoisonTask = Fault{"PoisonTask",
		"A task ends the process that plays it, again and again.",
		"It is given up after envserver.max_crashes, and the others go on. Look at the task that is named and at the log of its environment; run environments that can crash in a process of their own (a bridge)."}
	LearningStopped = Fault{"LearningStopped",
		"No policy version has been published for long.",
		"The page shows which stage the others wait for; its log says why."}
	LagGrows = Fault{"LagGrows",
		"A stage reads more slowly than its topics grow.",
		"Start more of it (scorers up to run.trace_partitions, environment servers up to run.task_partitions), or give it more CPU."}
	DeadLetters = Fault{"DeadLetters",
		"Records are refused and put aside.",
		"SELECT error, count(*) FROM dlq GROUP BY 1 says why; whoever wrote them has another version, or is broken."}
	DiskFilling = Fault{"DiskFilling",
		"A disk of the run is nearly full.",
		"Make room or make it larger before it is; prl-stage --stage cleanup deletes what no stage needs any more."}
	StageDown = Fault{"StageDown",
		"A process of the run does not answer.",
		"Look whether it runs, and at the end of its log; started again it goes on where it stopped."}
	StageRestarts = Fault{"StageRestarts",
		"A stage starts over again and again.",
		"Its log says \"stage starts over\" and why; nothing is lost, but little is done."}
)

// An Error is an error that shows a fault.
type Error struct {
	Fault Fault
	Err   error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Named finds a fault by its name.
func Named(name string) (f Fault, ok bool) {
	i := slices.IndexFunc(All, func(f Fault) bool { return f.Name == name })
	if i < 0 {
		return Fault{}, false
	}
	return All[i], true
}
