package eval

import (
	"testing"
	"time"

	"github.com/prl-project/prl/schemas"
)

// FuzzCore plays any events, two bytes each: traces of tasks that wait, that are done, of groups and evals never heard of
// and of the wrong version, versions in any order, jumps of the clock, restarts. Whatever comes, no eval of a version has two
// results and no example two outcomes.
func FuzzCore(f *testing.F) {
	f.Add([]byte{0, 0, 1, 1, 2, 0, 2, 0, 2, 0, 2, 0, 6, 0, 1, 1})
	f.Add([]byte{0, 0, 1, 1, 3, 0, 3, 1, 4, 9, 5, 0, 1, 255, 1, 255, 2, 0, 0, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		w := ready(t, nil)
		for ; len(b) >= 2; b = b[2:] {
			x := b[1]
			switch b[0] % 7 {
			case 0:
				w.policy(int64(x), b[0] > 250)
			case 1:
				w.tick(time.Duration(x) * 20 * time.Second)
			case 2, 3, 4, 5:
				if len(w.tasks) == 0 {
					continue
				}
				task := w.tasks[int(x)%len(w.tasks)]
				trace := play(task, task.RolloutIndex, float64(x)/255)
				switch b[0] % 7 {
				case 3:
					trace = failed(task, task.RolloutIndex, schemas.ErrorTimedOut)
				case 4:
					trace.GroupID += int64(int8(b[0]))
					trace.RolloutIndex = int(b[0] >> 4)
				case 5:
					trace.PinVersion, trace.Eval = new(int64(b[0])), []string{trace.Eval, "stranger"}[b[0]&1]
				}
				if trace.Validate() == nil {
					w.feed(trace)
				}
			case 6:
				w.r.Restart(t)
			}
		}
		type measured struct {
			eval    string
			version int64
		}
		results := map[measured]bool{}
		for _, r := range w.results {
			key := measured{r.Eval, r.Version}
			if results[key] {
				t.Fatalf("%+v has two results", key)
			}
			results[key] = true
			if err := r.Validate(); err != nil {
				t.Fatal(err)
			}
		}
		type example struct {
			eval  string
			group int64
		}
		fates := map[example]bool{}
		for _, o := range w.fates {
			key := example{o.Eval, o.GroupID}
			if fates[key] {
				t.Fatalf("%+v has two outcomes", key)
			}
			fates[key] = true
		}
	})
}
