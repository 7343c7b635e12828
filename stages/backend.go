package stages

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/inference/remote"
)

// newInference makes the inference stage with the backend that is configured.
func (a *App) newInference() (*inference.Server, error) {
	cfg := a.Config.Inference
	if a.member != nil {
		return a.member.fleet.models.New(a.Runtime, cfg, a.Config.Frozen, *a.member.share.Load())
	}
	if cfg.Native() {
		return inference.New(a.Runtime, cfg, a.Config.Frozen)
	}
	b, err := remote.New(a.Runtime, cfg, filepath.Join(a.Config.RunDir(), "served"))
	if err != nil {
		return nil, err
	}
	if cfg.Backend == inference.BackendOpenAI {
		return inference.NewFixed(a.Runtime, cfg, b)
	}
	return inference.NewServer(a.Runtime, cfg, a.Config.Frozen, b)
}

// validateBackend holds the run to what its inference servers can do.
func (c *Config) validateBackend() error {
	i := c.Inference
	if i.Native() {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(c.Frozen)) {
		if c.Frozen[name].Folder != "" {
			return fmt.Errorf("frozen.%s.folder with inference.backend = %q: only the native backend serves folders; start a server for it and give frozen.%s.url and model", name, i.Backend, name)
		}
	}
	if len(c.Envs) == 0 {
		return nil
	}
	const aside = "set servers aside for that (inference.remote.eval_urls), or use inference.backend = \"native\""
	switch {
	case i.Backend == inference.BackendOpenAI:
		return fmt.Errorf(`inference.backend = "openai" serves a model that cannot be given new weights, but the run trains one: use "vllm" or "sglang"; a model that only plays or teaches is a section [frozen.<name>] with its url, or with that of an inference stage of this backend and no [envs]`)
	case c.Run.MaxAsyncLevel == 0:
		return fmt.Errorf("run.max_async_level = 0 with inference.backend = %q: ordered mode needs answers that depend on the seed alone, and versions that stay as long as they are asked for; set it to 1 or more, or use inference.backend = \"native\"", i.Backend)
	case len(c.Evals) > 0 && i.OneVersion():
		return fmt.Errorf("evals.%s with inference.backend = %q: evals measure one version while the run goes on, and the servers hold the newest only; %s", slices.Sorted(maps.Keys(c.Evals))[0], i.Backend, aside)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Envs)) {
		if e := c.Envs[name]; e.Teacher == schemas.TeacherSelf {
			return fmt.Errorf("envs.%s.teacher = %q with inference.backend = %q: it asks for log-probabilities of one version, and the servers hold the newest only; name a section [frozen.<name>] with a url, or use inference.backend = \"native\"", name, e.Teacher, i.Backend)
		}
	}
	return nil
}
