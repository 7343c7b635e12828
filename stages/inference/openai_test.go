package inference

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/stages/inference/render"
)

// python is where `make python` puts the interpreter with OpenAI's client.
const python = "../../.cache/python"

// TestOpenAIClient lets OpenAI's own client speak with servers, see testdata/openai_client.py.
func TestOpenAIClient(t *testing.T) {
	need.Clients(t, python)
	_, native := serve(t, nil)
	_, locked := serve(t, func(c *Config) { c.Token = pipeline.NewSecret("secret") })

	// The prompt says what the policy is to say, or what is to happen after three tokens.
	data := qwen(t)
	speech, err := render.New("", data)
	if err != nil {
		t.Fatal(err)
	}
	asked := func(r Request) (verb, rest string) {
		prompt := speech.Decode(r.Tokens)
		for _, verb := range []string{"say ", "break after ", "wait after "} {
			if i := strings.LastIndex(prompt, verb); i >= 0 {
				rest, _, _ := strings.Cut(prompt[i+len(verb):], "\nassistant\n")
				return verb, strings.TrimSuffix(rest, "\n")
			}
		}
		return "", "?"
	}
	gone := make(chan error, 1)
	s, scripted := serveScripted(t, scripted{
		tokenizer: data,
		say: func(r Request) string {
			_, rest := asked(r)
			return rest
		},
		before: func(ctx context.Context, r Request, i int) error {
			switch verb, _ := asked(r); {
			case verb == "break after " && i == 3:
				return refuse(http.StatusInternalServerError, CodeInternal, "the model broke")
			case verb == "wait after " && i == 3:
				<-ctx.Done()
				gone <- ctx.Err()
				return ctx.Err()
			}
			return nil
		},
	})

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(python, "bin", "python3"), "testdata/openai_client.py", native.URL+"/v1", scripted.URL+"/v1", locked.URL+"/v1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("openai_client.py: %v\n%s%s", err, out, stderr.String())
	}
	for line := range bytes.Lines(out) {
		var check struct {
			Name  string
			Error *string
		}
		if err := json.Unmarshal(line, &check); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		t.Run(check.Name, func(t *testing.T) {
			if check.Error != nil {
				t.Error(*check.Error)
			}
		})
	}
	select {
	case <-gone:
	case <-ctx.Done():
		t.Fatal("the server did not notice that a client had left")
	}
	(&stage{Server: s, t: t}).await(0)
}
