package schemas

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
)

// names of all records, in a fixed order.
var names = []string{
	"EnvInfo", "EvalResult", "GroupOutcome", "MetricPoint", "MicroBatch", "PolicyVersion", "Request", "SampleGroup",
	"StageState", "Task", "Trace",
}

// random fills a record with arbitrary values; it need not be valid. Lists and maps are nil rather than empty, as
// decoding leaves them.
func random(rng *rand.Rand, name string) Record {
	r := newRecord(name)
	fill(rng, reflect.ValueOf(r).Elem())
	return r
}

func fill(rng *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(rng.IntN(2) == 0)
	case reflect.Int:
		v.SetInt(pick(rng, 0, -1, math.MaxInt32, math.MinInt32, int64(int32(rng.Uint32()))))
	case reflect.Int64:
		v.SetInt(pick(rng, 0, -1, math.MaxInt64, math.MinInt64, rng.Int64()))
	case reflect.Float64:
		v.SetFloat(pick(rng, 0, -1.5, math.Inf(1), math.SmallestNonzeroFloat64, rng.NormFloat64()))
	case reflect.String:
		v.SetString(text(rng))
	case reflect.Pointer:
		if rng.IntN(2) == 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(rng, v.Elem())
		}
	case reflect.Slice:
		n := length(rng)
		if n == 0 {
			return
		}
		if v.Type().Elem().Kind() == reflect.Uint8 {
			b := make([]byte, 4*n)
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			v.SetBytes(b)
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(rng, v.Index(i))
		}
	case reflect.Map:
		n := length(rng)
		if n == 0 {
			return
		}
		v.Set(reflect.MakeMap(v.Type()))
		for range n {
			e := reflect.New(v.Type().Elem()).Elem()
			fill(rng, e)
			v.SetMapIndex(reflect.ValueOf(text(rng)), e)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(rng, v.Field(i))
		}
	default:
		panic(fmt.Sprintf("a record holds a %v", v.Type()))
	}
}

func pick[T any](rng *rand.Rand, vs ...T) T { return vs[rng.IntN(len(vs))] }

func length(rng *rand.Rand) int { return pick(rng, 0, 0, 1, 2, 3, 7) }

func text(rng *rand.Rand) string {
	return pick(rng, "", "a", "reward", "ßµ☃\U0001F600", "\x00\n\"", strings.Repeat("long ", 40), fmt.Sprint(rng.IntN(1000)))
}

// exampleTrace is a valid trace of the size by which encodings are compared: nodes × tokens.
func exampleTrace(nodes, tokens int) *Trace {
	rng := rand.New(rand.NewPCG(1, 2))
	t := &Trace{Env: "wordle", GroupSize: 8, Rewards: map[string]*float64{"green": new(0.5), "valid": nil}, Reward: new(0.5),
		Metrics: map[string]float64{"turns": 6}, PolicyStart: new(int64(3)), PolicyEnd: new(int64(4)), Task: `{"word":"crane"}`}
	for i := range nodes {
		n := Node{Parent: i - 1, Role: "assistant", Content: "guess", Temperature: 1, Versions: []VersionRun{{0, 3}, {tokens / 2, 4}}}
		ids, logprobs := make([]int32, tokens), make([]float32, tokens)
		for k := range tokens {
			ids[k], logprobs[k] = rng.Int32N(50000), -rng.Float32()
		}
		n.TokenIDs, n.Logprobs, n.Mask = PackInt32s(ids), PackFloat32s(logprobs), bytes.Repeat([]byte{1}, tokens)
		t.Nodes = append(t.Nodes, n)
	}
	return t
}
