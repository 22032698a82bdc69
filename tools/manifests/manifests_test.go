package main

import (
	"crypto/tls"
	"crypto/x509"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
)

func natkitChart(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load("../../deploy/helm/natkit")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestPlain: the manifests for kubectl are those of the chart.
func TestPlain(t *testing.T) {
	if err := run("../..", false); err != nil {
		t.Error(err)
	}
}

// daemonSet renders the chart with values and returns the one that it has.
func daemonSet(t *testing.T, values map[string]any) *apps.DaemonSet {
	t.Helper()
	rendered, err := render(natkitChart(t), values)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names(rendered) {
		if err := check(rendered[name]); err != nil {
			t.Errorf("%s: %v\n%s", name, err, rendered[name])
		}
	}
	object, err := decode(rendered["daemonset.yaml"])
	if err != nil {
		t.Fatal(err)
	}
	return object.(*apps.DaemonSet)
}

// TestPrivilege: the exporter has the capabilities that its values ask for, and nothing else of the node.
func TestPrivilege(t *testing.T) {
	for _, tt := range []struct {
		name    string
		values  map[string]any
		want    []core.Capability
		hostPID bool
	}{
		{"usual", nil, []core.Capability{"BPF", "NET_ADMIN", "PERFMON", "SYSLOG"}, false},
		{"without drops", map[string]any{"drops": false}, []core.Capability{"NET_ADMIN", "SYSLOG"}, false},
		{"all namespaces", map[string]any{"allNamespaces": true}, []core.Capability{"BPF", "NET_ADMIN", "PERFMON", "SYSLOG", "SYS_ADMIN", "SYS_PTRACE"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := daemonSet(t, tt.values).Spec.Template.Spec
			s := pod.Containers[0].SecurityContext
			got := slices.Clone(s.Capabilities.Add)
			slices.Sort(got)
			if !slices.Equal(got, tt.want) || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) {
				t.Errorf("adds %v and drops %v, want %v and all", got, s.Capabilities.Drop, tt.want)
			}
			if *s.Privileged || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || pod.HostIPC || *pod.AutomountServiceAccountToken {
				t.Errorf("it may do more than it needs: %+v", s)
			}
			if !pod.HostNetwork || pod.HostPID != tt.hostPID {
				t.Errorf("host network %v, host processes %v", pod.HostNetwork, pod.HostPID)
			}
			for _, v := range pod.Volumes {
				if v.HostPath != nil {
					t.Errorf("it mounts %s of the node", v.HostPath.Path)
				}
			}
			if e := pod.Containers[0].Env; len(e) != 1 || e[0] != (core.EnvVar{Name: "NATKIT_READ_ONLY", Value: "1"}) {
				t.Errorf("environment %v", e)
			}
		})
	}
}

// TestValues: what is set arrives, and what the schema of the values does not have is refused.
func TestValues(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0", 64)
	d := daemonSet(t, map[string]any{
		"image": map[string]any{"repository": "registry.example.net/natkit", "digest": digest}, "port": 9999, "secretName": "other",
		"extraArgs": []any{"--top=20"}, "priorityClassName": "system-node-critical", "affinity": map[string]any{"nodeAffinity": map[string]any{}},
		"podLabels": map[string]any{"team": "net"}, "podAnnotations": map[string]any{"a": "b"}, "imagePullSecrets": []any{map[string]any{"name": "pull"}},
	})
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]
	if c.Image != "registry.example.net/natkit@"+digest || c.Ports[0].ContainerPort != 9999 || !slices.Contains(c.Args, "--listen=:9999") || !slices.Contains(c.Args, "--top=20") {
		t.Errorf("image %s, ports %v, arguments %v", c.Image, c.Ports, c.Args)
	}
	if pod.Volumes[0].Secret.SecretName != "other" || pod.PriorityClassName != "system-node-critical" || pod.ImagePullSecrets[0].Name != "pull" || d.Spec.Template.Labels["team"] != "net" {
		t.Errorf("the pod is %+v", pod)
	}
	for _, values := range []map[string]any{{"drop": true}, {"port": 0}, {"port": "9752"}, {"image": map[string]any{"repository": "x", "digest": "latest"}}} {
		if _, err := render(natkitChart(t), values); err == nil {
			t.Errorf("values %v are not refused", values)
		}
	}
}

func TestPodMonitor(t *testing.T) {
	rendered, err := render(natkitChart(t), map[string]any{"podMonitor": map[string]any{"enabled": true, "labels": map[string]any{"release": "prometheus"}}})
	if err != nil {
		t.Fatal(err)
	}
	object, err := decode(rendered["podmonitor.yaml"])
	if err != nil {
		t.Fatal(err)
	}
	m := object.(*monitoring.PodMonitor)
	pods := daemonSet(t, nil).Spec.Template.Labels
	for name, value := range m.Spec.Selector.MatchLabels {
		if pods[name] != value {
			t.Errorf("it selects %s=%s, and the pods have %q", name, value, pods[name])
		}
	}
	if m.Labels["release"] != "prometheus" || m.Spec.PodMetricsEndpoints[0].Authorization.Credentials.Key != "token" {
		t.Errorf("it is %+v", m)
	}
	if rendered, err := render(natkitChart(t), nil); err != nil || slices.Contains(names(rendered), "podmonitor.yaml") {
		t.Errorf("there is a PodMonitor that was not asked for (%v)", err)
	}
}

// TestPodMonitorTLS: with an authority certificates are checked, whatever insecureSkipVerify is.
func TestPodMonitorTLS(t *testing.T) {
	key := func(name, key string) *core.SecretKeySelector {
		return &core.SecretKeySelector{LocalObjectReference: core.LocalObjectReference{Name: name}, Key: key}
	}
	yes, no, name := true, false, "natkit.example.net"
	for _, tt := range []struct {
		values map[string]any
		want   monitoring.SafeTLSConfig
	}{
		{nil, monitoring.SafeTLSConfig{InsecureSkipVerify: &yes}},
		{map[string]any{"insecureSkipVerify": false}, monitoring.SafeTLSConfig{InsecureSkipVerify: &no}},
		{map[string]any{"insecureSkipVerify": false, "serverName": name}, monitoring.SafeTLSConfig{InsecureSkipVerify: &no, ServerName: &name}},
		{map[string]any{"ca": map[string]any{"secret": map[string]any{"name": "tls"}}, "serverName": name}, monitoring.SafeTLSConfig{CA: monitoring.SecretOrConfigMap{Secret: key("tls", "ca.crt")}, ServerName: &name}},
		{map[string]any{"ca": map[string]any{"configMap": map[string]any{"name": "ca", "key": "root.pem"}}}, monitoring.SafeTLSConfig{CA: monitoring.SecretOrConfigMap{
			ConfigMap: &core.ConfigMapKeySelector{LocalObjectReference: core.LocalObjectReference{Name: "ca"}, Key: "root.pem"}}}},
	} {
		values := map[string]any{"enabled": true}
		maps.Copy(values, tt.values)
		text, err := manifest(natkitChart(t), []string{"podmonitor.yaml"}, map[string]any{"podMonitor": values})
		if err != nil {
			t.Fatal(err)
		}
		object, err := decode(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := object.(*monitoring.PodMonitor).Spec.PodMetricsEndpoints[0].TLSConfig; !reflect.DeepEqual(*got, tt.want) {
			t.Errorf("%v gives %+v, want %+v", tt.values, *got, tt.want)
		}
	}
	for _, ca := range []map[string]any{
		{"secret": map[string]any{"name": "a"}, "configMap": map[string]any{"name": "b"}}, {"secret": map[string]any{}}, {"secret": map[string]any{"key": "ca.crt"}}, {"file": map[string]any{"name": "a"}},
	} {
		if _, err := render(natkitChart(t), map[string]any{"podMonitor": map[string]any{"enabled": true, "ca": ca}}); err == nil {
			t.Errorf("an authority in %v is not refused", ca)
		}
	}
}

// TestTLSSecret: a certificate in a secret of its own is where natkit reads it, beside the token of the other one.
func TestTLSSecret(t *testing.T) {
	pod := daemonSet(t, map[string]any{"tlsSecretName": "natkit-tls"}).Spec.Template.Spec
	if len(pod.Volumes) != 1 || pod.Volumes[0].Projected == nil || *pod.Volumes[0].Projected.DefaultMode != 0o400 {
		t.Fatalf("volumes %+v", pod.Volumes)
	}
	from := map[string]string{}
	for _, source := range pod.Volumes[0].Projected.Sources {
		for _, item := range source.Secret.Items {
			from[pod.Containers[0].VolumeMounts[0].MountPath+"/"+item.Path] = source.Secret.Name + " " + item.Key
		}
	}
	for flag, want := range map[string]string{"--tls-cert=": "natkit-tls tls.crt", "--tls-key=": "natkit-tls tls.key", "--token-file=": "natkit-exporter token"} {
		i := slices.IndexFunc(pod.Containers[0].Args, func(arg string) bool { return strings.HasPrefix(arg, flag) })
		if i < 0 || from[strings.TrimPrefix(pod.Containers[0].Args[i], flag)] != want {
			t.Errorf("%s is of %v, want %s", flag, from, want)
		}
	}
	if usual := daemonSet(t, nil).Spec.Template.Spec.Volumes; len(usual) != 1 || usual[0].Secret.SecretName != "natkit-exporter" {
		t.Errorf("without it: %+v", usual)
	}
}

// TestCertificateOfPage: the certificate that the page makes has the name that podmonitor.yaml asks for, signed by what it takes.
func TestCertificateOfPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^openssl req .*$`).FindString(string(page))
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("needs openssl")
	}
	cmd := exec.Command("sh", "-ec", line)
	cmd.Dir = t.TempDir()
	if out, err := cmd.CombinedOutput(); err != nil || line == "" {
		t.Fatalf("%q: %v: %s", line, err, out)
	}
	text, err := os.ReadFile("../../deploy/kubernetes/podmonitor.yaml")
	if err != nil {
		t.Fatal(err)
	}
	object, err := decode(string(text))
	if err != nil {
		t.Fatal(err)
	}
	config := object.(*monitoring.PodMonitor).Spec.PodMetricsEndpoints[0].TLSConfig
	authority, err := os.ReadFile(filepath.Join(cmd.Dir, config.CA.Secret.Key))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(cmd.Dir, "tls.crt"), filepath.Join(cmd.Dir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: *config.ServerName, Roots: roots}); err != nil {
		t.Error(err)
	}
}

// TestDoctorRole: who runs 'kubectl natkit' may run commands in pods of one namespace, and start pods if the values say so.
func TestDoctorRole(t *testing.T) {
	for _, tt := range []struct {
		startPods bool
		verbs     []string
	}{{false, []string{"pods get list", "pods/exec get create"}}, {true, []string{"pods get list", "pods/exec get create", "pods create delete watch"}}} {
		text, err := manifest(natkitChart(t), []string{"doctorrole.yaml"}, map[string]any{"doctorRole": map[string]any{"enabled": true, "startPods": tt.startPods}})
		if err != nil {
			t.Fatal(err)
		}
		documents := strings.Split(text, "\n---\n")
		nodes, err := decode(documents[0])
		if err != nil {
			t.Fatal(err)
		}
		if r := nodes.(*rbac.ClusterRole).Rules; len(r) != 1 || !slices.Equal(r[0].Resources, []string{"nodes"}) || !slices.Equal(r[0].Verbs, []string{"list"}) {
			t.Errorf("in the cluster: %+v", r)
		}
		object, err := decode(documents[1])
		if err != nil {
			t.Fatal(err)
		}
		role, got := object.(*rbac.Role), []string{}
		for _, r := range role.Rules {
			got = append(got, strings.Join(append(slices.Clone(r.Resources), r.Verbs...), " "))
		}
		if role.Namespace != "monitoring" || !slices.Equal(got, tt.verbs) {
			t.Errorf("in %s: %q, want %q", role.Namespace, got, tt.verbs)
		}
	}
	if rendered, err := render(natkitChart(t), nil); err != nil || slices.Contains(names(rendered), "doctorrole.yaml") {
		t.Errorf("there is a role that was not asked for (%v)", err)
	}
}

// TestHelperPod: the pod that deploy/natkit-fleet makes is one of Kubernetes, without more rights than the DaemonSet.
func TestHelperPod(t *testing.T) {
	object, err := decode(helperPod(t))
	if err != nil {
		t.Fatal(err)
	}
	pod, of := object.(*core.Pod).Spec, daemonSet(t, nil).Spec.Template.Spec
	own, exporter := pod.Containers[0].SecurityContext, of.Containers[0].SecurityContext
	for _, c := range own.Capabilities.Add {
		if !slices.Contains(exporter.Capabilities.Add, c) {
			t.Errorf("it has %s, and the DaemonSet has not", c)
		}
	}
	if *own.Privileged || *own.AllowPrivilegeEscalation || !*own.ReadOnlyRootFilesystem || !slices.Equal(own.Capabilities.Drop, []core.Capability{"ALL"}) || pod.HostPID || *pod.AutomountServiceAccountToken || len(pod.Volumes) > 0 {
		t.Errorf("it may do more than it needs: %+v", own)
	}
	if pod.NodeName != "node-a" || *pod.ActiveDeadlineSeconds != 240 || pod.Containers[0].Name != of.Containers[0].Name {
		t.Errorf("it is %+v", pod)
	}
}

// TestCheckRefuses: the check finds what a typing error makes of a manifest.
func TestCheckRefuses(t *testing.T) {
	good := "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a}\nautomountServiceAccountToken: false\n"
	if err := check(good); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"an unknown field": strings.Replace(good, "automount", "autoMount", 1),
		"a field twice":    good + "automountServiceAccountToken: true\n",
		"a wrong type":     strings.Replace(good, "false", "never", 1),
		"another kind":     strings.Replace(good, "ServiceAccount", "Secret", 1),
		"another selector": "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: a}\nspec:\n  selector: {matchLabels: {a: b}}\n  template: {metadata: {labels: {a: c}}}\n",
	} {
		if check(text) == nil {
			t.Errorf("%s is not refused", name)
		}
	}
}
