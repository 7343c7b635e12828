package env

import "fmt"

// The checks of options that many environments have, under the same names; a Config joins them in its Validate.

// CheckTasks checks train_tasks and eval_tasks, how many tasks are drawn.
func CheckTasks(train, eval int) error {
	if train < 1 || eval < 1 {
		return fmt.Errorf("train_tasks = %d, eval_tasks = %d: want at least 1 each", train, eval)
	}
	return nil
}

// CheckPercent checks eval_percent, the share of tasks that [HoldOut], [Deal] and [Draw] hold out.
func CheckPercent(percent int) error {
	if percent < 1 || percent > 50 {
		return fmt.Errorf("eval_percent = %d: want 1 to 50", percent)
	}
	return nil
}

// CheckPrompt checks prompt: compact, in few characters for a small model, or full, in sentences.
func CheckPrompt(prompt string) error {
	if prompt != "compact" && prompt != "full" {
		return fmt.Errorf("prompt = %q: want compact or full", prompt)
	}
	return nil
}
