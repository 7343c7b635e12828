package dryrun

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/trainer"
)

const (
	// torchLimit is how long PyTorch may take to be imported.
	torchLimit = 2 * time.Minute
	// lastWords is how much is shown of what a child printed before it died, in bytes.
	lastWords = 1500
)

// services are the checks of what is beside the brokers: the registry, environments, models and who serves them.
func (r *Run) services() (list []check) {
	c := r.Config
	if len(c.SchemaRegistry.URLs) > 0 {
		list = append(list, check{"schema registry", limit, r.seeRegistry})
	}
	if c.Tracing.Endpoint != "" {
		list = append(list, check{"tracing", limit, r.seeTracing})
	}
	if r.has("envserver") {
		for _, name := range c.Environments(r.Envs) {
			list = append(list, check{"environment " + name, r.envLimit(), func(ctx context.Context, res *Result) { r.seeEnv(ctx, res, name) }})
		}
		if len(c.Environments(r.Envs)) == 0 {
			list = append(list, check{"environments", limit, func(_ context.Context, res *Result) {
				res.fail("none to serve: --env names one, or the configuration has a section [envs.<name>]")
			}})
		}
	}
	if r.has("envserver") && !r.has("inference") {
		list = append(list, check{"inference", limit, r.seeInference})
	}
	if r.has("inference") && !c.Inference.Native() {
		for _, u := range slices.Concat(c.Inference.URLs, c.Inference.Remote.EvalURLs) {
			list = append(list, check{"server", limit, func(ctx context.Context, res *Result) {
				seeServer(ctx, res, u, c.Inference.Remote.Token.Reveal(), "", "does the server run? --url and inference.urls name it")
			}})
		}
	}
	if r.has("inference") || r.has("envserver") {
		for _, name := range slices.Sorted(maps.Keys(c.Frozen)) {
			list = append(list, check{"frozen " + name, limit, func(ctx context.Context, res *Result) { r.seeFrozen(ctx, res, name) }})
		}
	}
	if r.has("trainer") {
		list = append(list, check{"model", limit, func(_ context.Context, res *Result) {
			if says, err := c.Model.Look(); err != nil {
				res.fail("%w", err)
			} else {
				res.ok("%s", says)
			}
		}})
		if c.Trainer.Learner == trainer.LearnerTorch {
			list = append(list, check{"torch", torchLimit, r.seeTorch})
		}
	}
	return list
}

func (r *Run) envLimit() time.Duration { return cmp.Or(r.EnvLimit, 2*time.Minute) }

func (r *Run) seeRegistry(ctx context.Context, res *Result) {
	g, err := pipeline.NewSchemaRegistry(r.Config.SchemaRegistry, silent)
	if err != nil {
		res.fail("%w", err)
		return
	}
	switch missing, err := g.Missing(ctx); {
	case err != nil:
		res.fail("%w", err)
	case len(missing) > 0 && !r.Config.SchemaRegistry.AutoRegister:
		res.fail("it lacks the schemas of %s, and schema_registry.auto_register = false: register them (prl's folder schemas has them), or set that to true", strings.Join(missing, ", "))
	case len(missing) > 0:
		res.ok("it answers; the schemas of %s would be registered", strings.Join(missing, ", "))
	default:
		res.ok("it answers and has all schemas")
	}
}

// seeTracing asks whether anything listens where spans would go. It sends none.
func (r *Run) seeTracing(ctx context.Context, res *Result) {
	u, err := url.Parse(r.Config.Tracing.Endpoint)
	if err != nil {
		res.fail("tracing.endpoint: %w", err)
		return
	}
	port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		res.fail("tracing.endpoint: nothing listens at %s: %w: does the collector run? Without the setting nothing is traced", u.Host, err)
		return
	}
	if err := conn.Close(); err != nil {
		res.fail("tracing.endpoint: %w", err)
		return
	}
	res.ok("something listens at %s", u.Host)
}

// seeEnv lets a child open an environment and make a task.
func (r *Run) seeEnv(ctx context.Context, res *Result, name string) {
	dir, err := os.MkdirTemp("", "prl-dry-run-")
	if err != nil {
		res.fail("%w", err)
		return
	}
	defer os.RemoveAll(dir)
	section := r.Config.Envs[name]
	asked, err := toml.Marshal(stages.EnvProbe{Name: name, Dir: dir, Section: section})
	if err != nil {
		res.fail("%w", err)
		return
	}
	out, err := child(ctx, asked, nil, r.Probe)
	var found stages.ProbedEnv
	if err == nil {
		err = json.Unmarshal(out, &found)
	}
	if err != nil {
		res.fail("it does not load: %w", err)
		return
	}
	res.ok("version %s, %d tasks to train on, %d held out; the first task has %d bytes", found.Version, found.Train, found.Eval, found.TaskBytes)
}

// child runs a command until it ends or ctx does, and gives what it printed. An error has its last words.
func child(ctx context.Context, in []byte, env, command []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &errs
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		err = errors.New("it has not answered in time, and was killed")
	}
	if err != nil {
		said := strings.TrimSpace(strings.ToValidUTF8(errs.String(), ""))
		said = said[max(0, len(said)-lastWords):]
		return nil, fmt.Errorf("%w; its last words:\n%s", err, said)
	}
	return out.Bytes(), nil
}

func (r *Run) seeInference(ctx context.Context, res *Result) {
	c := r.Config
	seeServer(ctx, res, c.EnvServer.ModelURL, c.Inference.Token.Reveal(), c.EnvServer.Model,
		"does `prl-stage --stage inference` run? envserver.model_url names it")
}

// seeServer asks a server which models it has, and wants one of a name unless that is empty.
func seeServer(ctx context.Context, res *Result, at, token, model, do string) {
	client := inference.NewClient(at)
	defer client.Close()
	client.Token = token
	cards, err := client.Models(ctx)
	var names []string
	for _, card := range cards {
		names = append(names, card.ID)
	}
	switch e, refused := errors.AsType[*inference.Error](err); {
	case refused && (e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden):
		res.fail("%s refuses the token: %w", place(at), err)
	case err != nil:
		res.fail("%s does not answer: %w: %s", place(at), err, do)
	case model != "" && !slices.Contains(names, model):
		res.fail("%s has no model %q, but %q: correct the name", place(at), model, names)
	default:
		res.ok("%s answers and has %s", place(at), strings.Join(names, ", "))
	}
}

// place is a URL without what may be secret in it.
func place(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "the server"
	}
	return u.Redacted()
}

func (r *Run) seeFrozen(ctx context.Context, res *Result, name string) {
	c := r.Config.Frozen[name]
	if c.Folder == "" {
		seeServer(ctx, res, c.URL, c.Token.Reveal(), c.Model, "does the server run? frozen."+name+".url names it")
		return
	}
	for _, file := range []string{"config.json", "tokenizer.json", "model.safetensors"} {
		if _, err := os.Stat(filepath.Join(c.Folder, file)); err != nil {
			res.fail("frozen.%s.folder: %w", name, err)
			return
		}
	}
	res.ok("%s is there", c.Folder)
}

// torchProbe imports what the worker imports, and says what there is.
const torchProbe = `import json, sys, torch, transformers, safetensors
cuda = torch.cuda.is_available()
print(json.dumps({"python": sys.version.split()[0], "torch": torch.__version__, "transformers": transformers.__version__,
  "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
  "free": [torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())] if cuda else []}))`

func (r *Run) seeTorch(ctx context.Context, res *Result) {
	c := r.Config.Trainer.Torch
	python, err := exec.LookPath(c.Python)
	if err != nil {
		res.fail("trainer.torch.python: %w: `make torch` sets up an interpreter with PyTorch, or name one that has it", err)
		return
	}
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "PRL_") || strings.HasPrefix(kv, "PYTHON") })
	out, err := child(ctx, nil, append(env, "HF_HUB_OFFLINE=1"), []string{python, "-P", "-c", torchProbe})
	var found struct {
		Python, Torch, Transformers string
		Devices                     []string
		Free                        []int64
	}
	if err == nil {
		err = json.Unmarshal(out, &found)
	}
	switch {
	case err != nil:
		res.fail("trainer.torch.python = %q does not import what the worker needs (`make torch` sets it up): %w", c.Python, err)
	case c.Device == "cuda" && len(found.Devices) == 0:
		res.fail("trainer.torch.device = \"cuda\", but PyTorch %s finds no GPU: is the driver there, and is this PyTorch built for it? device = \"auto\" trains on the CPU", found.Torch)
	case len(found.Devices) == 0:
		res.ok("Python %s, PyTorch %s, transformers %s; no GPU: it would train on the CPU", found.Python, found.Torch, found.Transformers)
	default:
		var gpus []string
		for i, name := range found.Devices {
			gpus = append(gpus, fmt.Sprintf("%s (%d GiB free)", name, found.Free[i]>>30))
		}
		res.ok("Python %s, PyTorch %s, transformers %s; %s", found.Python, found.Torch, found.Transformers, strings.Join(gpus, ", "))
	}
}
