package main

import (
	"errors"
	"fmt"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// kinds are those that natkit's manifests have, by apiVersion and kind.
var kinds = map[string]func() any{
	"v1 ServiceAccount":                        func() any { return &core.ServiceAccount{} },
	"v1 Pod":                                   func() any { return &core.Pod{} },
	"rbac.authorization.k8s.io/v1 Role":        func() any { return &rbac.Role{} },
	"rbac.authorization.k8s.io/v1 ClusterRole": func() any { return &rbac.ClusterRole{} },
	"apps/v1 DaemonSet":                        func() any { return &apps.DaemonSet{} },
	"monitoring.coreos.com/v1 PodMonitor":      func() any { return &monitoring.PodMonitor{} },
}

// check reads a manifest into the type of its kind: a field that this type has not, or one that is given twice, is an
// error, and so is a selector that does not select the pods.
func check(text string) error {
	_, err := decode(text)
	return err
}

func decode(text string) (any, error) {
	var what meta.TypeMeta
	if err := yaml.Unmarshal([]byte(text), &what); err != nil {
		return nil, err
	}
	kind := what.APIVersion + " " + what.Kind
	make, ok := kinds[kind]
	if !ok {
		return nil, fmt.Errorf("%q: natkit has no manifests of that kind", kind)
	}
	object := make()
	document, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	// As the API server does: encoding/json would take a field in other letters.
	unknown, err := json.UnmarshalStrict(document, object)
	if err = errors.Join(append(unknown, err)...); err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	if d, ok := object.(*apps.DaemonSet); ok {
		selector, err := meta.LabelSelectorAsSelector(d.Spec.Selector)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
		if !selector.Matches(labels(d.Spec.Template.Labels)) {
			return nil, fmt.Errorf("%s: its selector does not select its pods", kind)
		}
	}
	return object, nil
}

// labels are those of pods, for a selector.
type labels map[string]string

func (l labels) Has(name string) bool              { _, ok := l[name]; return ok }
func (l labels) Get(name string) string            { return l[name] }
func (l labels) Lookup(name string) (string, bool) { v, ok := l[name]; return v, ok }
