package trainer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// inFolder is the home of a shadow trainer's versions: a file with a line for each.
type inFolder struct {
	rt   *pipeline.Runtime // the run's
	own  *pipeline.Runtime // with the shadow trainer's own blobs
	cfg  ShadowConfig
	path string
}

// A line is a version and its points, which follow it into the topic.
type line struct {
	Version *schemas.PolicyVersion `json:"version"`
	Points  []*schemas.MetricPoint `json:"points"`
}

// shadowWriter publishes the versions of a shadow trainer.
type shadowWriter struct {
	*publisher // of points
	home       *inFolder
	file       *os.File
	lines      []line
}

// claim takes the name, begins the file with a version of the run if it is new, and writes the points that are missing in the
// topic.
func (h *inFolder) claim(ctx context.Context) (writer, error) {
	p, err := claimAs(ctx, h.rt, Shadow, h.rt.TopicName(Shadow+"."+h.cfg.Name))
	if err != nil {
		return nil, err
	}
	w := &shadowWriter{publisher: p, home: h}
	if err := w.open(ctx); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *shadowWriter) open(ctx context.Context) (err error) {
	h := w.home
	if w.lines, err = h.read(); err != nil {
		return err
	}
	if w.file, err = os.OpenFile(h.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644); err != nil {
		return fmt.Errorf("open the versions of a shadow trainer: %w", err)
	}
	if len(w.lines) == 0 {
		first, err := h.begin(ctx)
		if err != nil {
			return err
		}
		if err := w.add(line{Version: first}); err != nil {
			return err
		}
		return w.catchUp(ctx)
	}
	if first := w.lines[0].Version.Version; h.cfg.FromVersion != 0 && first != h.cfg.FromVersion {
		return pipeline.Fatal("shadow trainer %s has begun from version %d, not from version %d: choose another name (--shadow)", h.cfg.Name, first, h.cfg.FromVersion)
	}
	return w.catchUp(ctx)
}

// read gives the lines of the file, and cuts off the last where it is torn.
func (h *inFolder) read() (lines []line, err error) {
	data, err := os.ReadFile(h.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the versions of a shadow trainer: %w", err)
	}
	whole := bytes.LastIndexByte(data, '\n') + 1
	if whole < len(data) {
		if err := os.Truncate(h.path, int64(whole)); err != nil {
			return nil, fmt.Errorf("cut a torn line off the versions of a shadow trainer: %w", err)
		}
	}
	s := bufio.NewScanner(bytes.NewReader(data[:whole]))
	s.Buffer(nil, len(data)+1)
	for s.Scan() {
		var l line
		if err := json.Unmarshal(s.Bytes(), &l); err != nil || l.Version == nil {
			return nil, pipeline.Fatal("%s: line %d cannot be read: remove the folder, and the shadow trainer begins anew: %w", h.path, len(lines)+1, err)
		}
		if n := len(lines); n > 0 && l.Version.Version != lines[n-1].Version.Version+1 {
			return nil, pipeline.Fatal("%s: version %d behind version %d: remove the folder, and the shadow trainer begins anew", h.path, l.Version.Version, lines[n-1].Version.Version)
		}
		lines = append(lines, l)
	}
	return lines, s.Err()
}

// begin takes a version of the run over into the shadow trainer's own store.
func (h *inFolder) begin(ctx context.Context) (*schemas.PolicyVersion, error) {
	origin, err := h.origin(ctx)
	if err != nil {
		return nil, err
	}
	if origin.Kind != schemas.KindFull {
		return nil, pipeline.Fatal("version %d is a %s; a shadow trainer begins with whole weights", origin.Version, origin.Kind)
	}
	v := *origin
	v.Final, v.Metrics = false, map[string]float64{}
	v.Checkpoint = new(*origin.Checkpoint)
	for _, of := range []struct {
		prefix string
		ref    *schemas.BlobRef
	}{{weightsPrefix, &v.Weights}, {modelPrefix, &v.Config}, {modelPrefix, &v.Tokenizer}, {checkpointPrefix, v.Checkpoint}} {
		if *of.ref, err = h.own.Blobs.Take(ctx, h.rt.Blobs, of.prefix, *of.ref); err != nil {
			return nil, fmt.Errorf("take version %d over: %w", v.Version, err)
		}
	}
	return &v, nil
}

func (h *inFolder) versions(context.Context) (history, error) {
	lines, err := h.read()
	var all history
	for _, l := range lines {
		all = append(all, l.Version)
	}
	return all, err
}

// version writes the line of a version, which is its commit, and then its points.
func (w *shadowWriter) version(ctx context.Context, v *made) error {
	l := line{v.PolicyVersion, points(v.PolicyVersion, v.figures, time.Now())}
	for _, p := range l.Points {
		p.Stage, p.Instance, p.Labels = Shadow, w.rt.Instance, map[string]string{Shadow: w.home.cfg.Name}
	}
	if err := w.add(l); err != nil {
		return err
	}
	pipeline.Crash(Shadow + ".recorded")
	if err := w.tell(ctx, l.Points); err != nil {
		return err
	}
	return w.forget(ctx)
}

func (w *shadowWriter) add(l line) error {
	text, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("write down version %d: %w", l.Version.Version, err)
	}
	if _, err = w.file.Write(append(text, '\n')); err == nil {
		err = w.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("write down version %d: %w", l.Version.Version, err)
	}
	w.lines = append(w.lines, l)
	return nil
}

// tell writes points to the topic.
func (w *shadowWriter) tell(ctx context.Context, points []*schemas.MetricPoint) error {
	if len(points) == 0 {
		return nil
	}
	var list []pipeline.Emission
	for _, p := range points {
		list = append(list, pipeline.Emission{Topic: pipeline.TopicMetrics, Partition: pipeline.AutoPartition, Value: p})
	}
	return w.commit(ctx, list, nil)
}

// catchUp writes the points of versions that the topic has none of: the process ended between the line and them.
func (w *shadowWriter) catchUp(ctx context.Context) error {
	f, err := w.rt.Follow(pipeline.TopicMetrics)
	if err != nil {
		return err
	}
	defer f.Close()
	recs, err := f.Load(ctx)
	if err != nil {
		return err
	}
	told := int64(-1)
	for _, r := range recs {
		if p, ok := r.Value.(*schemas.MetricPoint); ok && p.Stage == Shadow && p.Labels[Shadow] == w.home.cfg.Name && p.Step != nil {
			told = max(told, *p.Step)
		}
	}
	if newest := w.lines[len(w.lines)-1].Version; told > newest.Step {
		return pipeline.Fatal("metrics has points of shadow trainer %s to step %d, its folder has versions to %d: another one of this name has run; choose another name (--shadow)", w.home.cfg.Name, told, newest.Version)
	}
	for _, l := range w.lines {
		if l.Version.Step > told {
			if err := w.tell(ctx, l.Points); err != nil {
				return err
			}
		}
	}
	return nil
}

// forget deletes weights and optimizer states that no restart needs: of versions that are neither the first, nor the final one,
// nor among the newest with a checkpoint.
func (w *shadowWriter) forget(ctx context.Context) error {
	kept, keep := map[string]bool{}, w.home.cfg.Keep
	var old []*schemas.PolicyVersion
	for i, l := range slices.Backward(w.lines) {
		v := l.Version
		switch {
		case v.Checkpoint == nil:
			continue
		case i > 0 && !v.Final && keep <= 0:
			old = append(old, v)
			continue
		}
		keep--
		kept[v.Weights.URI], kept[v.Checkpoint.URI] = true, true
	}
	for _, v := range old[:min(len(old), 2)] { // those before are gone already
		for _, ref := range []schemas.BlobRef{v.Weights, *v.Checkpoint} {
			if !kept[ref.URI] {
				if err := w.home.own.Blobs.Delete(ctx, pipeline.BlobInfo{URI: ref.URI, Modified: time.Now()}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (w *shadowWriter) close() {
	w.publisher.close()
	if w.file != nil {
		_ = w.file.Close() // every line was synced
	}
}
