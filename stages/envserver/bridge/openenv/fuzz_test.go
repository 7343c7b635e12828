package openenv

import (
	"encoding/json"
	"math"
	"testing"
	"unicode/utf8"
)

// Whatever a server answers, it is an error or can be shown: nothing panics, and a reward is a number or none.
func FuzzAnswer(f *testing.F) {
	for _, text := range []string{
		`{"type":"observation","data":{"observation":{"text":"a","n":[1]},"reward":true,"done":false,"metadata":{"n":1}}}`,
		`{"type":"observation","data":{"observation":{"result":{"content":[{"type":"image","data":"aGk=","mimeType":"i"}]},"error":null},"reward":null}}`,
		`{"type":"error","data":{"code":"VALIDATION_ERROR","message":"m","errors":[{"loc":["a",0],"msg":"wrong"}]}}`,
		`{"type":"observation","data":{"observation":{"error":{"error_type":"invalid_args","message":"m"}},"reward":1e999}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := decode(text)
		if err != nil {
			_ = err.Error()
			return
		}
		r, err := observed(a)
		if err != nil {
			return
		}
		if v := r.Reward.v; v != nil && (math.IsNaN(*v) || math.IsInf(*v, 0)) {
			t.Errorf("reward %v", *v)
		}
		shownText, err := Defaults().observe(r.Observation)
		if err != nil || utf8.Valid(text) && !utf8.ValidString(shownText) {
			t.Errorf("the observation %s is shown as %q, %v", r.Observation, shownText, err)
		}
		metrics := map[string]float64{}
		numbers(r.Metadata, metrics)
		var c called
		if json.Unmarshal(r.Observation, &c) == nil {
			_, _ = shown(c.Result, "")
		}
	})
}
