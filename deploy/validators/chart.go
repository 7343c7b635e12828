package main

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// release is what the chart is rendered as.
var release = chartutil.ReleaseOptions{Name: "prl", Namespace: "training", Revision: 1, IsInstall: true}

// cluster is what it is rendered for.
var cluster = chartutil.KubeVersion{Version: "v1.37.2", Major: "1", Minor: "37"}

// chart lints the chart in dir, renders it with the values of files, each over the ones before, and validates what comes out: what
// `helm lint --strict`, `helm template` and a server-side dry run would say.
func chart(dir string, files []string) ([]map[string]any, error) {
	given := chartutil.Values{}
	for _, f := range files {
		more, err := chartutil.ReadValuesFile(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		given = chartutil.MergeTables(more, given)
	}
	if err := linted(dir, given); err != nil {
		return nil, err
	}
	loaded, err := loader.LoadDir(dir)
	if err != nil {
		return nil, err
	}
	if wants := loaded.Metadata.KubeVersion; wants != "" && !chartutil.IsCompatibleRange(wants, cluster.Version) {
		return nil, fmt.Errorf("the chart wants Kubernetes %s, and is held to %s", wants, cluster.Version)
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = cluster
	top, err := chartutil.ToRenderValues(loaded, given, release, capabilities)
	if err != nil {
		return nil, err
	}
	rendered, err := engine.Engine{Strict: true}.Render(loaded, top)
	if err != nil {
		return nil, err
	}
	var all []map[string]any
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(rendered)) {
		if ext := filepath.Ext(name); ext != ".yaml" {
			continue
		}
		for doc := range strings.SplitSeq(rendered[name], "\n---") {
			var object map[string]any
			if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
				wrong = append(wrong, fmt.Errorf("%s: %w\n%s", name, err, doc))
			}
			if len(object) == 0 {
				continue
			}
			if err := validate([]byte(doc), object); err != nil {
				wrong = append(wrong, fmt.Errorf("%s: %w", name, err))
			}
			all = append(all, object)
		}
	}
	return all, errors.Join(wrong...)
}

func linted(dir string, given map[string]any) error {
	var wrong []error
	for _, m := range lint.All(dir, given, release.Namespace, true).Messages {
		if m.Severity >= support.WarningSev {
			wrong = append(wrong, fmt.Errorf("lint: %s: %w", m.Path, m.Err))
		}
	}
	return errors.Join(wrong...)
}
