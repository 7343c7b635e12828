// Package env is the public API of environments: pure game logic, without Kafka, models or tokens.
//
// The guarantee it gives an author: an episode is called by one goroutine at a time, never again once it is done, and a panic
// in it becomes an error of that rollout alone. The guarantee it asks for: everything an episode says is a function of
// (task, seed) and the replies it got.
//
// An [Environment] numbers its tasks and starts episodes; an [Episode] gives the first messages, answers the policy's
// replies and scores what happened. Three methods each; the package example is a complete environment in forty lines.
// Tools are exported methods of the episode (see [Tools]), or what it has otherwise ([ToolSource]). What else an environment
// can do, it says by implementing [Baseliner], [Demonstrator], [GroupScorer], [Limited] or [Rescorer]; an episode by implementing
// [MultiAgent], [Finisher] or [io.Closer]. One that plays whole rollouts itself is a [Host].
//
// # Whose fault
//
// An error means that the infrastructure failed: the rollout has no reward and is tried again. What the policy does wrong
// (an illegal move, text nobody can parse, a bad tool call) is never an error: the episode answers it, and scores it.
//
// [Session] is the runner's side: it plays one episode and keeps the guarantees above.
package env

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Split says which of an environment's tasks an index counts through.
type Split string

// Train tasks are trained on; Eval tasks are held out of training.
const (
	Train Split = "train"
	Eval  Split = "eval"
)

// Info is what an environment says of itself.
type Info struct {
	// Name is how configuration, topics and traces call the environment: lower case letters, digits and dashes.
	Name string
	// Version changes whenever the same task, seed and replies could give another episode or score.
	Version string
	// Train and Eval count the tasks of each split; indices run from 0. A prefix of a split should be a fair sample of it,
	// since an eval may play only that.
	Train, Eval int
	// Disjoint says that no eval task is also a training task. The conformance test holds the environment to it. Where it is
	// false the environment documents what an eval then measures.
	Disjoint bool
	// MaxTurns is the number of replies after which an episode is cut, at least 1.
	MaxTurns int
	// CutReplies says that a reply which was cut at the task's max_tokens is an answer like any other, as where an answer
	// is one character. Elsewhere such a reply is the last: the rollout ends there, truncated.
	CutReplies bool
	// OneCall says that a reply ends with its first tool call, so that the policy gets the answer before it says more. It
	// holds for policies in whose format the end of a call is a token; others may still make several calls at once.
	OneCall bool
	// Timeout bounds a rollout up to the policy's last reply, and TurnTimeout the wait for one reply; 0 is no bound of the
	// environment's own. A rollout that reaches one is cut, and scored; the configuration's own bounds hold beside them.
	Timeout, TurnTimeout time.Duration
}

// Tasks is the number of tasks of a split; 0 for a split that does not exist.
func (i Info) Tasks(split Split) int {
	switch split {
	case Train:
		return i.Train
	case Eval:
		return i.Eval
	}
	return 0
}

// Environment makes episodes. Its methods may be called by many goroutines at once.
type Environment interface {
	// Info is constant over the life of the environment.
	Info() Info
	// Task is the JSON of a task, the same whenever it is asked for. It is kept with every rollout and is what SQL can see,
	// so it names its fields well.
	Task(split Split, index int) (json.RawMessage, error)
	// Start begins an episode. Rollouts of one group get the same task and the same seed. A task that came from elsewhere may
	// have fields that the environment does not know; it ignores them.
	Start(ctx context.Context, task json.RawMessage, seed int64) (Episode, error)
}

// Episode is one run of a policy through a task. An episode that implements [io.Closer] is closed when its rollout ends,
// however that was: Start and Close are its set-up and its tear-down, and their times are recorded apart from the rest.
type Episode interface {
	// Prompt is what the policy sees before its first reply: at least one message.
	Prompt() []Message
	// Reply takes what the policy said and answers it. If the episode has tools, a reply with tool calls goes to them and does
	// not come here, see [Session.Reply].
	Reply(ctx context.Context, reply Message) (Turn, error)
	// Score is called once, after the last reply: when the episode is done, or when it was cut at any point before, the first
	// reply included.
	Score(ctx context.Context) (Score, error)
}

// Turn is the environment's answer to a reply.
type Turn struct {
	// Messages are what the policy sees next; of user, system or tool role. They may be empty only if Done, or if they are the
	// first for an agent that has a prompt.
	Messages []Message
	// Agent is who speaks next, and whom Messages are for, in an episode with several agents ([MultiAgent]). Empty: the one
	// that spoke.
	Agent string
	// Done says that the episode is over: nothing is called but Score.
	Done bool
	// Truncated says that a limit on the policy ended the episode; it is scored all the same. It implies Done.
	Truncated bool
}

// MultiAgent is an episode with several agents. The policy plays all of them, each in a conversation of its own: an agent sees
// its prompt, the messages that a [Turn] has for it and its own replies, and nothing of the others. One speaks at a time; its
// reply comes with its name in Message.Agent. The tools are the same for all, and who called one goes on with the answer.
//
// Rewards of their own stand in Score.Agents; how agents of the same name are compared over a group is the algorithm's matter.
type MultiAgent interface {
	// Agents names them, each once; they stay the same while the episode lasts. The first speaks first, and Episode.Prompt is
	// what it sees.
	Agents() []string
	// PromptOf is what another agent sees before all else. It is asked for when the agent is to speak for the first time, and
	// the messages of that turn follow it.
	PromptOf(agent string) []Message
}

// Finisher is an episode whose tools can end it: Done is asked after each tool call.
type Finisher interface {
	Done() bool
}

// Baseliner is an environment that knows what policies without a model reach: mean reward over the tasks of a split, by
// name. They are shown beside every eval. Usual names: "random" (a uniformly random legal player), "blind" (the best policy
// that does not look at what it is shown), "copy" (answers what it was shown).
type Baseliner interface {
	Baselines(split Split) map[string]float64
}

// Demonstrator is an environment that can show how a task is solved, for self-distillation: the policy that is shown the
// demonstration, as a system message before the conversation, is the teacher of the policy that is not.
type Demonstrator interface {
	// Demonstrate is an expert's solution of a task, the same whenever it is asked for. It is written in the characters of the
	// prompt and the replies, and short: it shares the model's context with the conversation.
	Demonstrate(task json.RawMessage, seed int64) (string, error)
}

// Rollout is a finished episode as a [GroupScorer] sees it.
type Rollout struct {
	// Messages are all that was shown and said, in order, the prompts included. Of several agents each message says whose
	// conversation it is part of.
	Messages []Message
	// Replies are the indices of those that the policy said: a prompt may have messages of its role, too.
	Replies []int
	// Score is what the episode itself said.
	Score Score
}

// GroupScorer is an environment that compares the rollouts of a task with each other. Such an environment is given whole
// groups: ScoreGroup gets all rollouts of one task and returns as many scores in the same order, which replace their own.
type GroupScorer interface {
	ScoreGroup(ctx context.Context, task json.RawMessage, group []Rollout) ([]Score, error)
}

// CheckIndex returns an error if a split has no task of that index.
func CheckIndex(info Info, split Split, index int) error {
	if n := info.Tasks(split); index < 0 || index >= n {
		return fmt.Errorf("%s: no task %d in split %q, which has %d", info.Name, index, split, n)
	}
	return nil
}
