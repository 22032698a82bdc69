package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// commands returns the part of a page in ```sh that has a text, with the page's words for what differs replaced.
func (c *cluster) commands(t *testing.T, page, has string, replace ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.repo, page))
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range strings.Split(string(text), "\n```") {
		if body, ok := strings.CutPrefix(part, "sh\n"); ok && i%2 == 1 && strings.Contains(body, has) {
			return strings.NewReplacer(replace...).Replace(body)
		}
	}
	t.Fatalf("%s has no commands with %q", page, has)
	return ""
}

// shell runs lines of a page as they stand there.
func (c *cluster) shell(t *testing.T, dir, script string) string {
	t.Helper()
	stdout, stderr, exit := c.run(t, c.admin, "", "bash", "-euo", "pipefail", "-c", "cd \"$1\"\n"+script, "bash", dir)
	if exit != 0 || strings.Contains(stderr, "Warning:") {
		t.Fatalf("exit code %d of\n%s\n%s%s", exit, script, stdout, stderr)
	}
	return stdout
}

// apply sends manifests to the API server: as a trial in both ways, in earnest, and once more. It takes them without a warning,
// such as about a field that it does not know or that is deprecated, and finds nothing to change the second time.
func (c *cluster) apply(t *testing.T, text string) {
	t.Helper()
	c.kubectlWith(t, text, "delete", "--ignore-not-found", "-f", "-")
	objects := strings.Count(text, "\nkind: ")
	for _, flags := range [][]string{{"--dry-run=server"}, {"--server-side", "--dry-run=server"}, nil} {
		args := append([]string{"apply", "-f", "-", "--validate=strict", "--warnings-as-errors"}, flags...)
		stdout, stderr, exit := c.run(t, c.admin, text, "kubectl", args...)
		if exit != 0 || stderr != "" {
			t.Fatalf("kubectl %q: exit code %d: %s%s", args, exit, stdout, stderr)
		}
		if got := strings.Count(stdout, "\n"); got != objects {
			t.Fatalf("kubectl %q names %d of %d objects:\n%s", args, got, objects, stdout)
		}
	}
	again := c.kubectlWith(t, text, "apply", "-f", "-")
	if strings.Count(again, " unchanged\n") != objects {
		t.Errorf("applied again, it is changed again:\n%s", again)
	}
}

// testInstall: the commands of docs/kubernetes.md install it, by Helm and without.
func (c *cluster) testInstall(t *testing.T) {
	c.kubectl(t, "create", "-f", c.podMonitorCRD(t))
	c.kubectl(t, "wait", "--for=condition=Established", "--timeout=180s", "crd/podmonitors.monitoring.coreos.com")
	c.shell(t, c.dir, c.commands(t, "docs/kubernetes.md", "kubectl create namespace"))
	install := c.commands(t, "docs/kubernetes.md", "helm install", "REGISTRY", "registry.example.net", "VERSION", "1.2.3")
	helm, kubectl, ok := strings.Cut(install, "\nkubectl ")
	if !ok {
		t.Fatalf("not two ways to install:\n%s", install)
	}
	c.program(t, "helm")
	c.shell(t, c.repo, helm)
	image := c.kubectl(t, "-n", "monitoring", "get", "daemonset", "natkit-exporter", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
	if image != "registry.example.net/natkit-readonly:1.2.3" {
		t.Errorf("Helm installed the image %s", image)
	}
	c.kubectl(t, "-n", "monitoring", "get", "podmonitor", "natkit-exporter")
	c.shell(t, c.repo, "helm upgrade natkit deploy/helm/natkit -n monitoring --set allNamespaces=true --set doctorRole.enabled=true\nhelm uninstall natkit -n monitoring --wait")
	if left := c.kubectl(t, "-n", "monitoring", "get", "daemonset,podmonitor,role,serviceaccount", "-l", "app.kubernetes.io/name=natkit", "-o", "name"); left != "" {
		t.Errorf("Helm left %s", left)
	}
	c.shell(t, c.repo, "kubectl "+kubectl)
	for _, p := range plain {
		text, err := os.ReadFile(filepath.Join(c.repo, "deploy/kubernetes", p.file))
		if err != nil {
			t.Fatal(err)
		}
		t.Run(p.file, func(t *testing.T) { c.apply(t, string(text)) })
	}
}

func (c *cluster) podMonitorCRD(t *testing.T) string {
	t.Helper()
	path := filepath.Join(c.repo, ".cache/cluster/podmonitors.yaml")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: 'scripts/setup kubernetes' brings it", err)
	}
	return path
}

// everything has a value for each field of the chart.
var everything = map[string]any{
	"image":            map[string]any{"repository": "registry.example.net/natkit", "digest": "sha256:" + strings.Repeat("0", 64), "pullPolicy": "Always"},
	"imagePullSecrets": []any{map[string]any{"name": "pull"}}, "secretName": "other", "tlsSecretName": "tls", "port": 9999, "drops": false, "allNamespaces": true,
	"extraArgs": []any{"--top=20", "--netns", "a b"},
	"resources": map[string]any{"limits": map[string]any{"cpu": "1", "memory": "1Gi", "ephemeral-storage": "10Mi"}},
	"tolerations": []any{map[string]any{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"},
		map[string]any{"key": "gpu", "value": "yes", "operator": "Equal", "effect": "NoExecute", "tolerationSeconds": 60}},
	"nodeSelector": map[string]any{"role": "gateway"}, "priorityClassName": "system-node-critical",
	"affinity": map[string]any{"nodeAffinity": map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": map[string]any{
		"nodeSelectorTerms": []any{map[string]any{"matchExpressions": []any{map[string]any{"key": "role", "operator": "In", "values": []any{"gateway"}}}}}}}},
	"podLabels": map[string]any{"team": "net"}, "podAnnotations": map[string]any{"example.net/a": "b: {c}", "example.net/n": "1"},
	"podMonitor": map[string]any{"enabled": true, "labels": map[string]any{"release": "prometheus"}, "interval": "1m", "insecureSkipVerify": false,
		"ca": map[string]any{"configMap": map[string]any{"name": "authority", "key": "root.pem"}}, "serverName": "natkit.example.net"},
	"doctorRole": map[string]any{"enabled": true, "startPods": true},
}

// testChart: what the chart makes of different values is taken.
func (c *cluster) testChart(t *testing.T) {
	for name, values := range map[string]map[string]any{
		"no values":  nil,
		"everything": everything,
		"empty":      {"tolerations": []any{}, "nodeSelector": map[string]any{"kubernetes.io/os": nil}, "resources": map[string]any{"requests": nil, "limits": nil}, "extraArgs": []any{}},
		"no drops":   {"drops": false, "podMonitor": map[string]any{"enabled": true}},
		"all":        {"allNamespaces": true, "doctorRole": map[string]any{"enabled": true}},
	} {
		t.Run(name, func(t *testing.T) {
			rendered, err := render(natkitChart(t), values)
			if err != nil {
				t.Fatal(err)
			}
			var texts []string
			for _, name := range names(rendered) {
				texts = append(texts, rendered[name])
			}
			text := "\n" + strings.Join(texts, "\n---\n")
			c.apply(t, text)
			c.kubectlWith(t, text, "delete", "-f", "-")
		})
	}
	// What the next tests find is what the page installs.
	c.kubectl(t, "apply", "-f", filepath.Join(c.repo, "deploy/kubernetes"))
	c.kubectl(t, "apply", "-f", filepath.Join(c.repo, "deploy/kubernetes/exporter.yaml"))
}

// testRefused: the API server refuses what a typing error makes of a manifest; otherwise that it takes the manifests would
// say nothing.
func (c *cluster) testRefused(t *testing.T) {
	for _, tt := range []struct{ file, from, to, want string }{
		{"exporter.yaml", "automountServiceAccountToken", "autoMountServiceAccountToken", `unknown field "autoMountServiceAccountToken"`},
		{"exporter.yaml", "hostPort: 9752", "hostPort: 9753", "must match `containerPort`"},
		{"exporter.yaml", `image: "natkit/natkit-readonly:0.1.0"`, `image: ""`, "spec.template.spec.containers[0].image: Required value"},
		{"exporter.yaml", "type: RuntimeDefault", "type: Default", "seccompProfile.type"},
		{"doctor-role.yaml", "verbs: [list]", "verbs: []", "rules[0].verbs: Required value"},
		{"podmonitor.yaml", "jobLabel:", "joblabel:", `unknown field "spec.joblabel"`},
		{"podmonitor.yaml", "interval: 30s", "interval: 30 s", "spec.podMetricsEndpoints[0].interval"},
	} {
		text, err := os.ReadFile(filepath.Join(c.repo, "deploy/kubernetes", tt.file))
		if err != nil {
			t.Fatal(err)
		}
		wrong := strings.Replace(string(text), tt.from, tt.to, 1)
		if wrong == string(text) {
			t.Fatalf("%s has no %s", tt.file, tt.from)
		}
		stdout, stderr, exit := c.run(t, c.admin, wrong, "kubectl", "apply", "-f", "-", "--dry-run=server", "--validate=strict")
		if exit == 0 || !strings.Contains(stderr, tt.want) {
			t.Errorf("%s with %s: exit code %d, want one for %q: %s%s", tt.file, tt.to, exit, tt.want, stdout, stderr)
		}
	}
}

// helperPod is the pod that 'kubectl natkit -i IMAGE' starts.
func helperPod(t *testing.T) string {
	t.Helper()
	script, err := os.ReadFile("../../deploy/natkit-fleet")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(script), "cat <<POD\n")
	text, _, ok2 := strings.Cut(text, "\nPOD\n")
	if !ok || !ok2 {
		t.Fatal("the manifest is not found")
	}
	return strings.NewReplacer("$1", "node-a", "$image", "natkit", "$((3 * limit + 60))", "240").Replace(text)
}

// testPodSecurity: pods of the exporter, and those that the plugin starts, require a namespace of the level privileged.
func (c *cluster) testPodSecurity(t *testing.T) {
	pods := map[string]any{}
	for name, values := range map[string]map[string]any{"usual": nil, "no drops": {"drops": false}, "all namespaces": {"allNamespaces": true}} {
		template := daemonSet(t, values).Spec.Template
		pods[name] = core.Pod{TypeMeta: meta.TypeMeta{Kind: "Pod", APIVersion: "v1"}, ObjectMeta: meta.ObjectMeta{Name: "try", Labels: template.Labels}, Spec: template.Spec}
	}
	pods["of the plugin"] = json.RawMessage(helperPod(t))
	for _, level := range []string{"restricted", "baseline", "privileged"} {
		namespace := "level-" + level
		c.kubectl(t, "create", "namespace", namespace)
		c.kubectl(t, "label", "namespace", namespace, "pod-security.kubernetes.io/enforce="+level)
		c.kubectl(t, "-n", namespace, "create", "serviceaccount", "natkit-exporter")
		c.await(t, "the account of pods in "+namespace, func() error {
			_, err := c.admin.get("/api/v1/namespaces/"+namespace+"/serviceaccounts/default", nil)
			return err
		})
		for name, pod := range pods {
			_, err := c.admin.send("POST", "/api/v1/namespaces/"+namespace+"/pods?dryRun=All", pod, nil)
			if level == "privileged" {
				if err != nil {
					t.Errorf("a pod (%s) in a namespace of the level %s: %v", name, level, err)
				}
				continue
			}
			if code(t, err) != 403 || !strings.Contains(err.Error(), fmt.Sprintf(`violates PodSecurity "%s:latest": `, level)) || !strings.Contains(err.Error(), "hostNetwork=true") {
				t.Errorf("a pod (%s) in a namespace of the level %s: %v, want a refusal that names hostNetwork", name, level, err)
			}
		}
	}
	// What who applies the DaemonSet there finds: no pods, and an event that says why.
	text, err := os.ReadFile(filepath.Join(c.repo, "deploy/kubernetes/exporter.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	c.addNode(t, "node-a", "linux", c.kubelet.port)
	c.kubectlWith(t, strings.ReplaceAll(string(text), "namespace: monitoring", "namespace: level-baseline"), "apply", "-f", "-")
	c.await(t, "an event about the refused pod", func() error {
		events := c.kubectl(t, "-n", "level-baseline", "get", "events", "--field-selector=reason=FailedCreate", "-o", "jsonpath={.items[*].message}")
		if !strings.Contains(events, "violates PodSecurity") {
			return fmt.Errorf("events %q", events)
		}
		return nil
	})
	c.kubectl(t, "-n", "level-baseline", "delete", "daemonset", "natkit-exporter")
}

// testDaemonSet: the namespace of docs/kubernetes.md is enough for a pod on each node with Linux, with whatever taint.
func (c *cluster) testDaemonSet(t *testing.T) {
	c.addNode(t, "node-a", "linux", c.kubelet.port)
	c.addNode(t, "node-b", "linux", c.kubelet.port)
	c.addNode(t, "node-c", "linux", c.kubelet.port)
	c.addNode(t, "node-down", "linux", 1) // nothing listens there
	c.addNode(t, "node-windows", "windows", c.kubelet.port)
	c.kubectl(t, "taint", "node", "node-c", "dedicated=gateway:NoExecute")
	const daemonset = "/apis/apps/v1/namespaces/monitoring/daemonsets/natkit-exporter"
	c.await(t, "a pod on each node", func() error {
		var d apps.DaemonSet
		if _, err := c.admin.get(daemonset, &d); err != nil {
			return err
		}
		if s := d.Status; s.DesiredNumberScheduled != 4 || s.NumberReady != 4 || s.UpdatedNumberScheduled != 4 || s.ObservedGeneration != d.Generation {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	var pods core.PodList
	if _, err := c.admin.get("/api/v1/namespaces/monitoring/pods", &pods); err != nil {
		t.Fatal(err)
	}
	on := map[string]bool{}
	for _, p := range pods.Items {
		on[p.Spec.NodeName] = true
		for _, v := range p.Spec.Volumes {
			if v.Secret == nil {
				t.Errorf("the pod on %s has the volume %s that its manifest does not have", p.Spec.NodeName, v.Name)
			}
		}
	}
	if len(pods.Items) != 4 || on["node-windows"] || !on["node-c"] {
		t.Errorf("pods on %v", on)
	}
	// The PodMonitor finds them.
	text, err := os.ReadFile(filepath.Join(c.repo, "deploy/kubernetes/podmonitor.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Spec struct {
			Selector meta.LabelSelector
		}
	}
	if err := yaml.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	selector := meta.FormatLabelSelector(&m.Spec.Selector)
	if found := c.kubectl(t, "-n", "monitoring", "get", "pods", "-l", selector, "-o", "name"); strings.Count(found, "\n") != 4 {
		t.Errorf("the PodMonitor's selector %s finds %q", selector, found)
	}
}
