package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	core "k8s.io/api/core/v1"
)

// testPod: what a pod of the DaemonSet runs, with the container's capabilities and no others and with the secret that the page
// makes, answers the probes, and shows its metrics to who asks as the PodMonitor says, and to no one else.
func (c *cluster) testPod(t *testing.T) {
	var pods core.PodList
	if _, err := c.admin.get("/api/v1/namespaces/monitoring/pods", &pods); err != nil {
		t.Fatal(err)
	}
	pod := pods.Items[0].Spec
	own := pod.Containers[0]
	c.startCommand(t, "natkit exporter", c.contained(t, own, c.mounted(t, pod)))

	c.testCapabilities(t, own)
	probe := own.ReadinessProbe.HTTPGet
	port := portOf(t, own, probe.Port.String())
	c.await(t, "the exporter is ready", func() error {
		return answers(strings.ToLower(string(probe.Scheme)), port, probe.Path, "", http.StatusOK)
	})
	if live := own.LivenessProbe.HTTPGet; live.Path != probe.Path || live.Port != probe.Port || live.Scheme != probe.Scheme {
		t.Errorf("one probe asks for %+v, the other for %+v", live, probe)
	}

	text, err := os.ReadFile(filepath.Join(c.repo, "deploy/kubernetes/podmonitor.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	object, err := decode(string(text))
	if err != nil {
		t.Fatal(err)
	}
	endpoint := object.(*monitoring.PodMonitor).Spec.PodMetricsEndpoints[0]
	var secret core.Secret
	if _, err := c.admin.get("/api/v1/namespaces/monitoring/secrets/"+endpoint.Authorization.Credentials.Name, &secret); err != nil {
		t.Fatal(err)
	}
	token := string(secret.Data[endpoint.Authorization.Credentials.Key])
	scheme, port := string(*endpoint.Scheme), portOf(t, own, *endpoint.Port)
	c.await(t, "all parts are read", func() error {
		metrics, err := ask(scheme, port, endpoint.Path, token, http.StatusOK)
		if err != nil {
			return err
		}
		return whole(metrics)
	})
	for _, other := range []string{"", "no" + token} {
		if err := answers(scheme, port, endpoint.Path, other, http.StatusUnauthorized); err != nil {
			t.Errorf("with the token %q: %v", other, err)
		}
	}
}

// testCapabilities: with all capabilities of the container all is read, without any one of them something is not.
func (c *cluster) testCapabilities(t *testing.T, own core.Container) {
	once := func(without int) string {
		less := own.DeepCopy()
		less.Args = []string{"exporter", "--once"}
		if without >= 0 {
			less.SecurityContext.Capabilities.Add = slices.Delete(less.SecurityContext.Capabilities.Add, without, without+1)
		}
		cmd := c.contained(t, *less, nil)
		cmd.Env = append(os.Environ(), cmd.Env...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v", cmd, err)
		}
		return string(out)
	}
	if err := whole(once(-1)); err != nil {
		t.Error(err)
	}
	restricted, err := os.ReadFile("/proc/sys/kernel/dmesg_restrict")
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range own.SecurityContext.Capabilities.Add {
		if name == "SYSLOG" && strings.TrimSpace(string(restricted)) == "0" {
			continue // anyone reads the kernel's log on this machine
		}
		if err := whole(once(i)); err == nil {
			t.Errorf("all is read without CAP_%s", name)
		}
	}
}

// mounted writes what the pod's volumes have, and returns the directories by the paths in its container.
func (c *cluster) mounted(t *testing.T, pod core.PodSpec) map[string]string {
	t.Helper()
	dirs := map[string]string{}
	for _, m := range pod.Containers[0].VolumeMounts {
		for _, v := range pod.Volumes {
			if v.Name != m.Name {
				continue
			}
			var secret core.Secret
			if _, err := c.admin.get("/api/v1/namespaces/monitoring/secrets/"+v.Secret.SecretName, &secret); err != nil {
				t.Fatal(err)
			}
			dirs[m.MountPath] = t.TempDir()
			for name, data := range secret.Data {
				if err := os.WriteFile(filepath.Join(dirs[m.MountPath], name), data, os.FileMode(*v.Secret.DefaultMode)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return dirs
}

// contained is the command of a container with its user, capabilities and environment, and other directories for its mounts.
func (c *cluster) contained(t *testing.T, own core.Container, mounts map[string]string) *exec.Cmd {
	t.Helper()
	s := own.SecurityContext
	bounds := "-all"
	for _, name := range s.Capabilities.Add {
		bounds += ",+" + strings.ToLower(string(name))
	}
	args := []string{"--reuid=" + strconv.FormatInt(*s.RunAsUser, 10), "--clear-groups", "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=" + bounds, "--no-new-privs", c.program(t, "natkit")}
	for _, arg := range own.Args {
		for path, dir := range mounts {
			arg = strings.ReplaceAll(arg, path, dir)
		}
		args = append(args, arg)
	}
	cmd := exec.Command("setpriv", args...)
	for _, e := range own.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	return cmd
}

func portOf(t *testing.T, own core.Container, name string) int32 {
	t.Helper()
	for _, p := range own.Ports {
		if p.Name == name {
			return p.ContainerPort
		}
	}
	t.Fatalf("the container has no port %s", name)
	return 0
}

// ask asks the exporter, whose certificate is its own, and returns the answer.
func ask(scheme string, port int32, path, token string, want int) (string, error) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	request, err := http.NewRequest("GET", fmt.Sprintf("%s://127.0.0.1:%d%s", scheme, port, path), nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != want {
		err = fmt.Errorf("GET %s: %s, want code %d", path, response.Status, want)
	}
	return string(text), err
}

func answers(scheme string, port int32, path, token string, want int) error {
	_, err := ask(scheme, port, path, token, want)
	return err
}

// whole reports which parts of an exporter's data are missing.
func whole(metrics string) error {
	for _, part := range []string{"counters", "table", "services", "ports", "drops", "stack", "findings"} {
		if !strings.Contains(metrics, fmt.Sprintf("natkit_data_age_seconds{netns=\"\",part=%q}", part)) {
			return fmt.Errorf("%s was not read", part)
		}
	}
	for line := range strings.Lines(metrics) {
		missing := strings.HasPrefix(line, "natkit_read_failed{") || strings.HasPrefix(line, "natkit_unavailable{")
		if missing && !strings.HasSuffix(line, " 0\n") {
			return fmt.Errorf("could not be read: %s", line)
		}
	}
	return nil
}
