package export

import (
	"fmt"
	"slices"
	"strings"
)

// features are the columns in the words of Hugging Face's dataset cards: so a reader need not infer them from the first lines,
// which may have no tools.
const features = `  features:
  - name: messages
    list:
    - name: role
      dtype: string
    - name: content
      dtype: string
    - name: reasoning_content
      dtype: string
    - name: tool_calls
      list:
      - name: id
        dtype: string
      - name: type
        dtype: string
      - name: function
        struct:
        - name: name
          dtype: string
        - name: arguments
          dtype: string
    - name: tool_call_id
      dtype: string
    - name: name
      dtype: string
  - name: tools
    dtype: string
  - name: provenance
    struct:
    - name: run
      dtype: string
    - name: env
      dtype: string
    - name: env_version
      dtype: string
    - name: eval
      dtype: string
    - name: split
      dtype: string
    - name: task_index
      dtype: int64
    - name: group_id
      dtype: int64
    - name: rollout_index
      dtype: int32
    - name: attempt
      dtype: int32
    - name: branch
      dtype: int32
    - name: agent
      dtype: string
    - name: fate
      dtype: string
    - name: step
      dtype: int64
    - name: reward
      dtype: float64
    - name: policy_start
      dtype: int64
    - name: policy_end
      dtype: int64
    - name: policy
      dtype: string
    - name: truncated
      dtype: bool
    - name: tokens
      dtype: int32
    - name: token_exact
      dtype: bool
    - name: sha256
      dtype: string
`

// card is the dataset card: load_dataset reads from it which files are which split, and their columns. It reads one format of a
// folder; where there are both, that is Parquet. pattern is what stands between a split's name and the format.
func card(s *Summary, formats []string, pattern string) []byte {
	format := formats[0]
	if slices.Contains(formats, Parquet) {
		format = Parquet
	}
	var b strings.Builder
	b.WriteString("---\nconfigs:\n- config_name: default\n  data_files:\n")
	for _, split := range splitsOf(s) {
		fmt.Fprintf(&b, "  - split: %s\n    path: %s%s.%s\n", split, split, pattern, format)
	}
	fmt.Fprintf(&b, "dataset_info:\n%s---\n\nRollouts of the run %s, exported by prl.\n", features, s.Run)
	if pattern == "" {
		fmt.Fprintf(&b, "\n```\n%s```\n", s)
	}
	return []byte(b.String())
}
