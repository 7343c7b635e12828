package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"sigs.k8s.io/yaml"
)

// operators say, by API group, how the kinds of operators are checked.
var operators = map[string]func(doc []byte, object map[string]any) error{
	"keda.sh":               kedas,
	"monitoring.coreos.com": prometheusOperators,
	"kafka.strimzi.io":      strimzis,
}

// definitions is the folder with KEDA's CustomResourceDefinitions: crds, beside the one that this program is in.
func definitions() (string, error) {
	self, err := os.Executable()
	return filepath.Join(filepath.Dir(self), "..", "crds"), err
}

// kedas holds a manifest to KEDA's own definition of its kind, as the API server does; a field that is not in it, which the server
// would drop without a word, is an error.
func kedas(_ []byte, object map[string]any) error {
	kind := fmt.Sprint(object["kind"])
	dir, err := definitions()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(dir, "keda.sh_"+strings.ToLower(kind)+"s.yaml"))
	if err != nil {
		return fmt.Errorf("no definition of %s: %w", kind, err)
	}
	var definition apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &definition); err != nil {
		return err
	}
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(definition.Spec.Versions[0].Schema.OpenAPIV3Schema, &props, nil); err != nil {
		return err
	}
	structural, err := schema.NewStructural(&props)
	if err != nil {
		return err
	}
	if unknown := pruning.PruneWithOptions(object, structural, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}); len(unknown) > 0 {
		return fmt.Errorf("%s %v: unknown fields %v", kind, name(object), unknown)
	}
	validator, _, err := validation.NewSchemaValidator(&props)
	if err != nil {
		return err
	}
	if list := validation.ValidateCustomResource(nil, object, validator); len(list) > 0 {
		return fmt.Errorf("%s %v: %w", kind, name(object), list.ToAggregate())
	}
	return nil
}

// prometheusOperators decodes into the types of the Prometheus operator, strictly.
func prometheusOperators(doc []byte, object map[string]any) error {
	var into any
	switch object["kind"] {
	case "PodMonitor":
		into = &monitoring.PodMonitor{}
	case "PrometheusRule":
		into = &monitoring.PrometheusRule{}
	default:
		return fmt.Errorf("kind %v of the Prometheus operator is not known here", object["kind"])
	}
	if err := yaml.UnmarshalStrict(doc, into); err != nil {
		return fmt.Errorf("%v %v: %w", object["kind"], name(object), err)
	}
	return nil
}

// strimzis takes what a KafkaUser's fields are from Strimzi's documentation: no registry of Go, Python or JavaScript has its schema.
func strimzis(doc []byte, object map[string]any) error {
	var user struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       struct {
			Authentication struct {
				Type string `json:"type"`
			} `json:"authentication"`
			Authorization struct {
				Type string `json:"type"`
				ACLs []struct {
					Resource struct {
						Type        string `json:"type"`
						Name        string `json:"name,omitempty"`
						PatternType string `json:"patternType,omitempty"`
					} `json:"resource"`
					Operations []string `json:"operations"`
					Host       string   `json:"host,omitempty"`
				} `json:"acls"`
			} `json:"authorization"`
		} `json:"spec"`
	}
	if err := yaml.UnmarshalStrict(doc, &user); err != nil {
		return fmt.Errorf("KafkaUser %v: %w", name(object), err)
	}
	if user.Kind != "KafkaUser" || len(user.Spec.Authorization.ACLs) == 0 {
		return fmt.Errorf("KafkaUser %v: a KafkaUser with rights", name(object))
	}
	return nil
}
