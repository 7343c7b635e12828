package main

import (
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/batch"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	batchvalidation "k8s.io/kubernetes/pkg/apis/batch/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/networking"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	networkingvalidation "k8s.io/kubernetes/pkg/apis/networking/validation"
	"k8s.io/kubernetes/pkg/apis/policy"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	policyvalidation "k8s.io/kubernetes/pkg/apis/policy/validation"
)

// strict refuses fields that a kind does not have, and those that are there twice.
var strict = serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict).UniversalDeserializer()

// validate holds a manifest to what reads it in a cluster.
func validate(doc []byte, object map[string]any) error {
	group := schema.FromAPIVersionAndKind(fmt.Sprint(object["apiVersion"]), fmt.Sprint(object["kind"])).Group
	if check, ok := operators[group]; ok {
		return check(doc, object)
	}
	decoded, kind, err := strict.Decode(doc, nil, nil)
	if err != nil {
		return err
	}
	legacyscheme.Scheme.Default(decoded)
	internal, err := legacyscheme.Scheme.ConvertToVersion(decoded, schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal})
	if err != nil {
		return err
	}
	if m, ok := internal.(interface {
		GetNamespace() string
		SetNamespace(string)
	}); ok && m.GetNamespace() == "" {
		m.SetNamespace(release.Namespace)
	}
	if list := admit(internal); len(list) > 0 {
		return fmt.Errorf("%s %v: %w", kind.Kind, name(object), list.ToAggregate())
	}
	return nil
}

// admit is what the API server says when such an object is created.
func admit(object runtime.Object) field.ErrorList {
	pods := func(t *core.PodTemplateSpec) corevalidation.PodValidationOptions {
		return podutil.GetValidationOptionsFromPodTemplate(t, nil)
	}
	switch o := object.(type) {
	case *core.ConfigMap:
		return corevalidation.ValidateConfigMap(o)
	case *core.Secret:
		return corevalidation.ValidateSecret(o)
	case *core.ServiceAccount:
		return corevalidation.ValidateServiceAccount(o)
	case *core.Service:
		if o.Spec.ClusterIP != "" { // the server writes it down once more
			o.Spec.ClusterIPs = []string{o.Spec.ClusterIP}
		}
		return corevalidation.ValidateServiceCreate(o)
	case *core.PersistentVolumeClaim:
		return corevalidation.ValidatePersistentVolumeClaim(o, corevalidation.ValidationOptionsForPersistentVolumeClaimCreate())
	case *apps.StatefulSet:
		return appsvalidation.ValidateStatefulSet(o, appsvalidation.StatefulSetValidationOptions{}, pods(&o.Spec.Template))
	case *apps.Deployment:
		return appsvalidation.ValidateDeployment(o, pods(&o.Spec.Template))
	case *batch.Job:
		owned(o)
		return batchvalidation.ValidateJobCreate(o, batchvalidation.JobValidationOptions{PodValidationOptions: pods(&o.Spec.Template), RequirePrefixedLabels: true})
	case *networking.NetworkPolicy:
		return networkingvalidation.ValidateNetworkPolicy(o, networkingvalidation.NetworkPolicyValidationOptions{})
	case *networking.Ingress:
		return networkingvalidation.ValidateIngressCreate(o)
	case *policy.PodDisruptionBudget:
		return policyvalidation.ValidatePodDisruptionBudget(o, policyvalidation.PodDisruptionBudgetValidationOptions{})
	}
	return field.ErrorList{field.NotSupported(field.NewPath("kind"), fmt.Sprintf("%T", object), []string{"a kind that this validator knows: add it to admit"})}
}

// owned gives a Job what the API server gives it: labels and a selector of its own.
func owned(o *batch.Job) {
	o.UID = "00000000-0000-0000-0000-000000000000"
	labels := map[string]string{
		batch.LegacyJobNameLabel: o.Name, batch.JobNameLabel: o.Name,
		batch.LegacyControllerUidLabel: string(o.UID), batch.ControllerUidLabel: string(o.UID),
	}
	if o.Spec.Template.Labels == nil {
		o.Spec.Template.Labels = map[string]string{}
	}
	maps.Copy(o.Spec.Template.Labels, labels)
	o.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{batch.ControllerUidLabel: string(o.UID)}}
}

func name(object map[string]any) any {
	meta, _ := object["metadata"].(map[string]any)
	return meta["name"]
}
