package replay

import (
	"context"
	"fmt"
	"strings"

	"github.com/prl-project/prl/pipeline"
)

// Plan says what Recompute would read: it looks up the recorded order and scores nothing.
func Plan(ctx context.Context, src Source, cfg Config) (string, error) {
	if err := cfg.validate(); err != nil {
		return "", err
	}
	r := &replayer{cfg: cfg, src: src}
	rec, err := r.readRecorded(ctx)
	if err != nil {
		return "", fmt.Errorf("plan to recompute: %w", err)
	}
	var b strings.Builder
	b.WriteString(readPlan(src, pipeline.TopicOutcomes, pipeline.TopicSamples, pipeline.TopicBatches, cfg.Topic))
	if len(rec.turns) == 0 {
		b.WriteString("No group is selected.\n")
		return b.String(), nil
	}
	first, last := rec.turns[0].step, rec.turns[len(rec.turns)-1].step
	fmt.Fprintf(&b, "%s groups are selected, which were decided for the steps %d to %d; %d of these steps were packed of them alone.\n",
		count(int64(len(rec.turns))), first, last, len(rec.steps))
	return b.String(), nil
}

// PlanRescore says what Rescore would read.
func PlanRescore(src Source, cfg RescoreConfig) (string, error) {
	if err := cfg.validate(); err != nil {
		return "", err
	}
	return readPlan(src, cfg.Topic), nil
}

// readPlan lists topics and how many offsets of each there are.
func readPlan(src Source, topics ...string) string {
	var b strings.Builder
	listed := map[string]bool{}
	for _, topic := range topics {
		if listed[topic] {
			continue
		}
		listed[topic] = true
		fmt.Fprintf(&b, "would read %-12s %12s offsets in %d partitions\n", topic, count(offsets(src.Spans(topic))), len(src.Spans(topic)))
	}
	return b.String()
}
