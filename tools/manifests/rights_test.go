package main

import (
	"slices"
	"strings"
	"testing"

	authorization "k8s.io/api/authorization/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// may reports whether a user may do something: "create pods/exec monitoring", "get secrets monitoring", "list nodes". The
// API server is asked as that user.
func (u *user) may(t *testing.T, what string) bool {
	t.Helper()
	words := append(strings.Fields(what), "")
	resource, subresource, _ := strings.Cut(words[1], "/")
	resource, group, _ := strings.Cut(resource, ".")
	review := authorization.SelfSubjectAccessReview{
		TypeMeta: meta.TypeMeta{Kind: "SelfSubjectAccessReview", APIVersion: "authorization.k8s.io/v1"},
		Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorization.ResourceAttributes{
			Verb: words[0], Group: group, Resource: resource, Subresource: subresource, Namespace: words[2],
		}},
	}
	if _, err := u.send("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, &review); err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}

// rules returns all that a user may do in a namespace, one verb in each line.
func (u *user) rules(t *testing.T, namespace string) (all []string) {
	t.Helper()
	review := authorization.SelfSubjectRulesReview{
		TypeMeta: meta.TypeMeta{Kind: "SelfSubjectRulesReview", APIVersion: "authorization.k8s.io/v1"},
		Spec:     authorization.SelfSubjectRulesReviewSpec{Namespace: namespace},
	}
	if _, err := u.send("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review, &review); err != nil {
		t.Fatal(err)
	}
	if review.Status.Incomplete {
		t.Fatalf("the rules of %s are not all: %s", u.name, review.Status.EvaluationError)
	}
	for _, r := range review.Status.ResourceRules {
		for _, resource := range r.Resources {
			for _, verb := range r.Verbs {
				all = append(all, strings.Join([]string{verb, resource, strings.Join(r.APIGroups, ","), strings.Join(r.ResourceNames, ",")}, " "))
			}
		}
	}
	for _, r := range review.Status.NonResourceRules {
		for _, url := range r.NonResourceURLs {
			all = append(all, strings.Join(r.Verbs, ",")+" "+url)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// beyond returns what a user may do in a namespace and another may not.
func (u *user) beyond(t *testing.T, other *user, namespace string) (more []string) {
	t.Helper()
	of := other.rules(t, namespace)
	for _, rule := range u.rules(t, namespace) {
		if !slices.Contains(of, rule) {
			more = append(more, strings.TrimSpace(rule))
		}
	}
	return more
}

// forbidden are what neither the exporter nor who runs the plugin may do.
var forbidden = []string{
	"get secrets monitoring", "list secrets monitoring", "watch secrets monitoring", "get secrets kube-system", "list secrets",
	"get configmaps monitoring", "create serviceaccounts/token monitoring",
	"update pods monitoring", "patch pods monitoring", "patch pods/ephemeralcontainers monitoring", "create pods/attach monitoring", "create pods/portforward monitoring",
	"get pods/log monitoring", "get pods default", "list pods", "create pods/exec default", "get pods/exec default", "create pods/exec kube-system", "create pods default",
	"update nodes", "patch nodes", "delete nodes", "get nodes/proxy", "create nodes/proxy", "patch nodes/status",
	"get daemonsets.apps monitoring", "patch daemonsets.apps monitoring", "create deployments.apps monitoring",
	"create clusterrolebindings.rbac.authorization.k8s.io", "escalate clusterroles.rbac.authorization.k8s.io", "bind clusterroles.rbac.authorization.k8s.io",
	"impersonate users", "impersonate serviceaccounts monitoring", "list namespaces", "patch namespaces",
}

func refuse(t *testing.T, u *user, all []string) {
	t.Helper()
	for _, what := range all {
		if u.may(t, what) {
			t.Errorf("%s may %s", u.name, what)
		}
	}
}

// testServiceAccount: the exporter's account may do nothing that one without any role may not, and none of its pods has a
// token of it.
func (c *cluster) testServiceAccount(t *testing.T) {
	u := c.account(t, "monitoring", "natkit-exporter")
	for _, namespace := range []string{"monitoring", "default", "kube-system"} {
		if more := u.beyond(t, c.account(t, "monitoring", "default"), namespace); len(more) > 0 {
			t.Errorf("in %s the exporter may %q", namespace, more)
		}
	}
	refuse(t, u, append([]string{"list nodes", "get pods monitoring", "get pods/exec monitoring", "create pods/exec monitoring", "create pods monitoring"}, forbidden...))
	for _, path := range []string{"/api/v1/namespaces/monitoring/secrets/natkit-exporter", "/api/v1/namespaces/monitoring/pods", "/api/v1/nodes"} {
		if _, err := u.get(path, nil); code(t, err) != 403 {
			t.Errorf("GET %s as %s: %v, want a refusal", path, u.name, err)
		}
	}
	if _, err := c.admin.get("/api/v1/namespaces/monitoring/secrets/natkit-exporter", nil); err != nil {
		t.Errorf("there was nothing to refuse: %v", err)
	}
	mounts := c.kubectl(t, "-n", "monitoring", "get", "pods", "-o", "jsonpath={range .items[*]}{.spec.containers[*].volumeMounts[*].mountPath} {end}")
	if mounts == "" || strings.Contains(mounts, "serviceaccount") {
		t.Errorf("the pods mount %s", mounts)
	}
}

// testDoctorRole: who has the roles by the commands of docs/fleet.md may do what the plugin requires, and nothing else.
func (c *cluster) testDoctorRole(t *testing.T) {
	nobody, doctor := c.newUser(t, "nobody", ""), c.newUser(t, "doctor", "")
	c.shell(t, c.repo, c.commands(t, "docs/fleet.md", "create rolebinding", "USER", doctor.name))
	for namespace, want := range map[string][]string{
		"monitoring":  {"create pods/exec", "get pods", "get pods/exec", "list nodes", "list pods"},
		"default":     {"list nodes"},
		"kube-system": {"list nodes"},
	} {
		if got := doctor.beyond(t, nobody, namespace); !slices.Equal(got, want) {
			t.Errorf("in %s who has the roles may %q, want %q", namespace, got, want)
		}
	}
	for _, what := range []string{"list nodes", "get pods monitoring", "list pods monitoring", "get pods/exec monitoring", "create pods/exec monitoring"} {
		if !doctor.may(t, what) || nobody.may(t, what) {
			t.Errorf("%s: who has the roles %v, others %v", what, doctor.may(t, what), nobody.may(t, what))
		}
	}
	refuse(t, doctor, append([]string{"create pods monitoring", "delete pods monitoring", "watch pods monitoring", "get nodes"}, forbidden...))
	for path, want := range map[string]int{
		"/api/v1/nodes": 200, "/api/v1/namespaces/monitoring/pods": 200, "/api/v1/namespaces/monitoring/secrets": 403, "/api/v1/pods": 403,
		"/api/v1/namespaces/kube-system/pods": 403, "/api/v1/nodes/node-a": 403,
	} {
		if _, err := doctor.get(path, nil); code(t, err) != want {
			t.Errorf("GET %s as %s: %v, want code %d", path, doctor.name, err, want)
		}
	}
	// Pods may be started by those alone who have the larger role (doctorRole.startPods).
	rendered, err := render(natkitChart(t), map[string]any{"doctorRole": map[string]any{"enabled": true, "startPods": true}})
	if err != nil {
		t.Fatal(err)
	}
	c.kubectlWith(t, rendered["doctorrole.yaml"], "apply", "-f", "-")
	want := []string{"create pods", "create pods/exec", "delete pods", "get pods", "get pods/exec", "list nodes", "list pods", "watch pods"}
	if got := doctor.beyond(t, nobody, "monitoring"); !slices.Equal(got, want) {
		t.Errorf("with startPods: %q, want %q", got, want)
	}
	refuse(t, doctor, forbidden)
	c.kubectl(t, "apply", "-f", c.repo+"/deploy/kubernetes/doctor-role.yaml")
}
