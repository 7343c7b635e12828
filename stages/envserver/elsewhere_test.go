package envserver

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prl-project/prl/stages/inference"
)

// TestTeacherElsewhere has a server of another make as teacher, which knows prompt_logprobs and neither versions nor
// temperatures.
func TestTeacherElsewhere(t *testing.T) {
	for _, c := range []struct {
		name        string
		temperature float64
		down        int32 // answers that fail first
		want        string
	}{
		{"answers", 1, 0, ""},
		{"is away for a while", 1, 1, ""},
		{"is away", 1, 100, "teacher far: model call, try 3 of 3: boom"},
		{"knows temperature 1 only", 0.5, 0, "sample at temperature 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var calls atomic.Int32
			far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var body struct {
					Model    string  `json:"model"`
					TokenIDs []int32 `json:"token_ids"`
				}
				if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Model != "org/large" {
					t.Errorf("asked for %q: %v", body.Model, err)
				}
				if calls.Add(1) <= c.down {
					http.Error(w, "boom", http.StatusInternalServerError)
					return
				}
				logprobs := []any{nil}
				for _, id := range body.TokenIDs[1:] {
					logprobs = append(logprobs, map[string]any{strconv.Itoa(int(id)): map[string]any{"logprob": -float64(id) / 64, "rank": 7, "decoded_token": "?"}})
				}
				reply, err := json.Marshal(map[string]any{"request_id": "r", "choices": []any{map[string]any{"index": 0, "token_ids": []int{9}, "finish_reason": "length"}}, "prompt_logprobs": logprobs})
				if err != nil {
					t.Error(err)
				}
				fmt.Fprintf(w, "%s", reply)
			}))
			defer far.Close()
			home := says(tokenizer(t), "hello")
			d := inference.NewDirectory(home, map[string]inference.FrozenConfig{"far": {URL: far.URL, Model: "org/large"}}, nil, slog.New(slog.DiscardHandler))
			task := testTask()
			task.Temperature = c.temperature
			trace := playOne(t, taught(t, &game{}, d, "far"), task)
			if c.want != "" {
				if len(trace.Errors) != 1 || !strings.Contains(trace.Errors[0].Message, c.want) || trace.Nodes[1].RefLogprobs.Len() > 0 {
					t.Fatalf("errors %+v, want one with %q", trace.Errors, c.want)
				}
				return
			}
			scored(t, trace)
			n := trace.Nodes[1]
			want := make([]float32, n.TokenIDs.Len())
			for i, id := range n.TokenIDs.Values() {
				want[i] = -float32(n.Mask[i]) * float32(id) / 64
			}
			equal(t, "log-probabilities of the teacher", n.RefLogprobs.Values(), want)
			if n.RefModel != "far" || calls.Load() != c.down+1 || len(home.probes) > 0 {
				t.Errorf("teacher %q, asked %d times, and %d times at home", n.RefModel, calls.Load(), len(home.probes))
			}
		})
	}
}
