package inference

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"runtime"
	"testing"
	"testing/iotest"
)

// What is sent is the JSON of the request, of the length that was said, however it is read.
func TestQuestion(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	version := int64(7)
	for n := range 40 {
		r := Request{Model: `of "token_ids":[`, Temperature: 0.5, TopP: 1, MaxTokens: 3, Seed: -5, StopTokens: []int32{2, 1 << 20}, PinVersion: &version}
		for range n {
			r.Tokens = append(r.Tokens, []int32{0, -1, math.MaxInt32, math.MinInt32, rng.Int32N(1 << rng.IntN(31))}[rng.IntN(5)])
		}
		if n == 0 {
			r.Tokens = []int32{}
		}
		q, err := newQuestion(newGenerateRequest(r))
		if err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(newGenerateRequest(r))
		if err != nil {
			t.Fatal(err)
		}
		for name, read := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader, "in halves": iotest.HalfReader,
		} {
			got, err := io.ReadAll(read(q.body()))
			if err != nil || !bytes.Equal(got, want) || q.length() != int64(len(want)) {
				t.Fatalf("%s: %v\n%s of %d bytes, want\n%s", name, err, got, q.length(), want)
			}
		}
		if err := iotest.TestReader(q.body(), want); err != nil {
			t.Fatal(err)
		}
	}
}

// roundTrip is a transport that asks nobody.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A call sends its tokens once, as text of the size they have, and holds none of that text. It is all of them with every call: that
// grows with the square of the turns, since servers keep no conversations (they keep what they computed of the same beginning).
func TestCostOfACall(t *testing.T) {
	answer := canonical(t, 500)
	sent, asked := 0, 0
	buf := make([]byte, 4<<10)
	c := NewClient("http://localhost")
	c.http.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
		asked++
		for {
			n, err := r.Body.Read(buf)
			if sent += n; err != nil {
				break
			}
		}
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(answer)), ContentLength: int64(len(answer))}, nil
	})
	call := func(tokens int) (allocated, text int) {
		r := Request{Tokens: make([]int32, tokens), MaxTokens: 500, Temperature: 1, TopP: 1}
		for i := range r.Tokens {
			r.Tokens[i] = int32(100_000 + i%50_000)
		}
		var before, after runtime.MemStats
		const calls = 10
		sent, asked = 0, 0
		runtime.ReadMemStats(&before)
		for range calls {
			if _, err := c.Generate(context.Background(), r); err != nil {
				t.Fatal(err)
			}
		}
		runtime.ReadMemStats(&after)
		if asked != calls {
			t.Fatalf("%d requests for %d calls", asked, calls)
		}
		if n := (after.Mallocs - before.Mallocs) / calls; n > 100 {
			t.Errorf("a call allocates %d times", n)
		}
		return int(after.TotalAlloc-before.TotalAlloc) / calls, sent / calls
	}
	call(10)
	small, short := call(1000)
	large, long := call(100_000)
	if large-small > 4096 {
		t.Errorf("%d bytes are allocated for a call of 1,000 tokens, %d for one of 100,000", small, large)
	}
	if got := float64(long-short) / 99_000; got > 7 {
		t.Errorf("%.2f bytes are sent for each token of 6 digits", got)
	}
}
