package verifiers

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/prl-project/prl/stages/envserver/env"
)

// model is an OpenAI-compatible server that says what a function says.
type model struct {
	*httptest.Server
	mu    sync.Mutex
	asked []object
}

// said is an answer: a text, the calls of tools, or an error.
type said struct {
	text   string
	calls  []any
	status int
	code   string
}

func newModel(t *testing.T, say func(r *http.Request, messages []object) said) *model {
	m := &model{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"object":"list","data":[{"id":"policy","object":"model","max_model_len":4096}]}`)
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		var body object
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		m.mu.Lock()
		m.asked = append(m.asked, body)
		m.mu.Unlock()
		var messages []object
		for _, v := range listOf(body, "messages") {
			messages = append(messages, v.(object))
		}
		answer := say(r, messages)
		if answer.status != 0 {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(answer.status)
			fmt.Fprintf(w, `{"error":{"message":%q,"type":"invalid_request_error","code":%q}}`, answer.text, answer.code)
			return
		}
		write(w, answer, flagOf(body, "stream"))
	})
	m.Server = httptest.NewServer(mux)
	t.Cleanup(m.Close)
	return m
}

func write(w http.ResponseWriter, answer said, stream bool) {
	content := object{"role": "assistant", "content": answer.text}
	finish := "stop"
	if len(answer.calls) > 0 {
		content["tool_calls"], finish = answer.calls, "tool_calls"
	}
	body := object{"id": "c1", "created": 1, "model": "policy", "object": "chat.completion"}
	usage := object{"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
	if !stream {
		body["choices"], body["usage"] = []any{object{"index": 0, "message": content, "finish_reason": finish}}, usage
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, "%s", toJSON(body))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	body["object"] = "chat.completion.chunk"
	for i, c := range answer.calls {
		c.(object)["index"] = i
	}
	for _, choices := range [][]any{
		{object{"index": 0, "delta": content}}, {object{"index": 0, "delta": object{}, "finish_reason": finish}},
	} {
		body["choices"] = choices
		fmt.Fprintf(w, "data: %s\n\n", toJSON(body))
	}
	body["choices"], body["usage"] = []any{}, usage
	fmt.Fprintf(w, "data: %s\n\ndata: [DONE]\n\n", toJSON(body))
}

// backwards says the word that it is asked for.
func backwards(_ *http.Request, messages []object) said {
	word := strings.Fields(textOf(messages[len(messages)-1], "content"))[1]
	var turned []byte
	for i := range len(word) {
		turned = append(turned, word[len(word)-1-i])
	}
	return said{text: string(turned)}
}

func (m *model) job(task string) env.Job {
	return env.Job{
		Task: json.RawMessage(task), Split: env.Train, Seed: 1,
		Model: env.Endpoint{BaseURL: m.URL + "/v1", Model: "policy", Temperature: 1, TopP: 1, MaxTokens: 16},
	}
}
