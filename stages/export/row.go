package export

// A Row is a conversation, as a line of JSONL and a row of Parquet alike. Every field is in every line, so that readers that
// infer columns find them.
type Row struct {
	Messages []Message `json:"messages" parquet:"messages,list"`
	// Tools is a JSON array of the tools that the policy was told of, in OpenAI's words; null without any.
	Tools      *string    `json:"tools" parquet:"tools,optional"`
	Provenance Provenance `json:"provenance" parquet:"provenance"`
}

// A Message has OpenAI's keys, and reasoning_content as chat templates of Hugging Face have it.
type Message struct {
	Role             string     `json:"role" parquet:"role"`
	Content          string     `json:"content" parquet:"content"`
	ReasoningContent *string    `json:"reasoning_content" parquet:"reasoning_content,optional"`
	ToolCalls        []ToolCall `json:"tool_calls" parquet:"tool_calls,list,optional"`
	ToolCallID       *string    `json:"tool_call_id" parquet:"tool_call_id,optional"`
	Name             *string    `json:"name" parquet:"name,optional"` // of the tool that answers
}

// A ToolCall is a call of a tool; its arguments are JSON as text, or rows with other tools would not have the same columns.
type ToolCall struct {
	ID       string   `json:"id" parquet:"id"`
	Type     string   `json:"type" parquet:"type"`
	Function Function `json:"function" parquet:"function"`
}

// A Function is what is called.
type Function struct {
	Name      string `json:"name" parquet:"name"`
	Arguments string `json:"arguments" parquet:"arguments"`
}

// Provenance says where a conversation comes from.
type Provenance struct {
	Run          string   `json:"run" parquet:"run"`
	Env          string   `json:"env" parquet:"env"`
	EnvVersion   string   `json:"env_version" parquet:"env_version"`
	Eval         string   `json:"eval" parquet:"eval"`
	Split        string   `json:"split" parquet:"split"` // of the environment's tasks
	TaskIndex    int64    `json:"task_index" parquet:"task_index"`
	GroupID      int64    `json:"group_id" parquet:"group_id"`
	RolloutIndex int32    `json:"rollout_index" parquet:"rollout_index"`
	Attempt      int32    `json:"attempt" parquet:"attempt"`
	Branch       int32    `json:"branch" parquet:"branch"` // number of the conversation among those of the rollout
	Agent        string   `json:"agent" parquet:"agent"`
	Fate         string   `json:"fate" parquet:"fate"`
	Step         *int64   `json:"step" parquet:"step,optional"`
	Reward       *float64 `json:"reward" parquet:"reward,optional"`
	PolicyStart  *int64   `json:"policy_start" parquet:"policy_start,optional"`
	PolicyEnd    *int64   `json:"policy_end" parquet:"policy_end,optional"`
	Policy       string   `json:"policy" parquet:"policy"` // the frozen one that played; empty for the one that is trained
	Truncated    bool     `json:"truncated" parquet:"truncated"`
	Tokens       int32    `json:"tokens" parquet:"tokens"`
	// TokenExact says whether the run's chat format makes of the messages the very tokens that the policy saw and sampled; null
	// where that could not be tried.
	TokenExact *bool `json:"token_exact" parquet:"token_exact,optional"`
	// SHA256 is that of messages and tools.
	SHA256 string `json:"sha256" parquet:"sha256"`
}
