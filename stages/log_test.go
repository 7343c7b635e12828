package stages

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/logs"
)

// lockedBuffer is a buffer that several write to.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// TestLinesSayWhatTheyAreAbout reads every line of a whole run at level debug: it says of which run and process it is, once, and of
// which stage, unless what the stages share wrote it.
func TestLinesSayWhatTheyAreAbout(t *testing.T) {
	var out lockedBuffer
	log := logs.New(&out, logs.Options{Format: logs.JSON, Level: slog.LevelDebug})
	_, _ = smallRun(t, func(a *App) {
		a.Runtime.Log = log.With(logs.Run, a.Config.Run.Name, logs.Instance, a.Runtime.Instance)
		cl, err := a.Runtime.Client()
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		for _, topic := range []string{pipeline.TopicTraces, pipeline.TopicTasks("catch"), pipeline.TopicOutcomes} {
			if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: a.Runtime.TopicName(topic), Value: []byte("garbage")}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}, "run.max_steps=1")
	stages := map[string]int{}
	for line := range strings.Lines(out.String()) {
		var keys map[string]any
		if err := json.Unmarshal([]byte(line), &keys); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		stage, _ := keys[logs.Stage].(string)
		if stages[stage]++; keys[logs.Run] == nil || keys[logs.Instance] != "all" || stage == "" {
			t.Errorf("a line without run, instance or stage: %s", line)
		}
		for _, key := range []string{logs.Run, logs.Stage, logs.Instance} {
			if n := strings.Count(line, `"`+key+`":`); n != 1 {
				t.Errorf("%d times %s: %s", n, key, line)
			}
		}
	}
	for _, stage := range []string{"emitter", "envserver", "inference", "scorer", "sink"} {
		if stages[stage] == 0 {
			t.Errorf("no line of the %s; those there are: %v", stage, stages)
		}
	}
}
