package main

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// plugin runs 'kubectl natkit' as a user: kubectl finds it on the PATH, as it does everywhere.
func (c *cluster) plugin(t *testing.T, u *user, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	bin := filepath.Join(c.dir, "plugins")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(bin, "kubectl-natkit")
	if _, err := os.Lstat(name); err != nil {
		if err := os.Symlink(c.program(t, "natkit-fleet"), name); err != nil {
			t.Fatal(err)
		}
	}
	return c.run(t, u, "", "bash", append([]string{"-c", `PATH=$1:$PATH; shift; exec kubectl natkit "$@"`, "bash", bin}, args...)...)
}

// bundles returns the nodes whose whole bundles are in a directory.
func (c *cluster) bundles(t *testing.T, dir string) (nodes []string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(c.dir, dir, "*.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		z, err := gzip.NewReader(file)
		if err == nil {
			_, err = io.Copy(io.Discard, z)
		}
		file.Close()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		nodes = append(nodes, strings.TrimSuffix(filepath.Base(name), ".tar.gz"))
	}
	return nodes
}

// testPlugin: 'kubectl natkit' with the rights that docs/fleet.md names collects the bundles of the nodes that answer, says of
// each other one why not, and uses each right that it has.
func (c *cluster) testPlugin(t *testing.T) {
	doctor, nobody := c.newUser(t, "doctor", ""), c.newUser(t, "nobody", "")
	for _, tt := range []struct {
		name  string
		u     *user
		args  []string
		exit  int
		nodes []string // with a bundle
		want  []string // on stderr
		asked []string // of the API server
	}{
		{
			"all nodes", doctor, []string{"collect", "-o", "all"}, 4, []string{"node-a", "node-b", "node-c"},
			[]string{
				"kubectl natkit: node-down: the API server does not reach the kubelet there: dial tcp 127.0.0.1:1: connect: connection refused\n",
				"kubectl natkit: 3 of 4 nodes gave a bundle\n",
			},
			[]string{"get pods monitoring", "get pods/exec monitoring", "list nodes", "list pods monitoring"},
		},
		{
			"without a pod", doctor, []string{"collect", "-o", "podless", "node-windows"}, 4, nil,
			[]string{"kubectl natkit: node-windows: natkit cannot be run there: no pod of the DaemonSet runs there; -i IMAGE starts one for this time\n"}, nil,
		},
		{"by name", doctor, []string{"collect", "-o", "named", "node-b"}, 0, []string{"node-b"}, []string{"1 of 1 nodes gave a bundle\n"}, nil},
		{"by label", doctor, []string{"collect", "-o", "labelled", "-l", "place in (a,c)"}, 0, []string{"node-a", "node-c"}, []string{"2 of 2 nodes"}, nil},
		{"by context", nobody, []string{"collect", "-o", "context", "--context", "none", "node-b"}, 1, nil, []string{`context "none" does not exist`}, nil},
		{"no such node", doctor, []string{"collect", "-o", "unknown", "node-a", "node-z"}, 4, []string{"node-a"}, []string{"kubectl natkit: node-z: the cluster has no node of this name\n"}, nil},
		{"no such label", doctor, []string{"collect", "-o", "nothing", "-l", "place=z"}, 1, nil, []string{"kubectl natkit: no node of the cluster is selected\n"}, nil},
		{"a bad selector", doctor, []string{"collect", "-o", "selector", "-l", "a=b=c"}, 1, nil, []string{"kubectl natkit: list the nodes: "}, nil},
		{
			"no rights", nobody, []string{"collect", "-o", "rights"}, 1, nil,
			[]string{`kubectl natkit: list the nodes: Error from server (Forbidden): nodes is forbidden: User "nobody" cannot list resource "nodes"`, "deploy/kubernetes/doctor-role.yaml"},
			[]string{"list nodes"},
		},
		{
			"another namespace", doctor, []string{"collect", "-o", "namespace", "-n", "default"}, 1, nil,
			[]string{`list the pods of natkit in the namespace default: Error from server (Forbidden): pods is forbidden`}, nil,
		},
		{
			"no right to start a pod", doctor, []string{"collect", "-o", "start", "-i", "registry.example.net/natkit:1", "node-windows"}, 4, nil,
			[]string{"kubectl natkit: node-windows: ", `pods is forbidden: User "doctor" cannot create resource "pods"`}, nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := c.recorded(t)
			stdout, stderr, exit := c.plugin(t, tt.u, tt.args...)
			if exit != tt.exit {
				t.Errorf("exit code %d, want %d: %s%s", exit, tt.exit, stdout, stderr)
			}
			for _, want := range tt.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("no %q in %s", want, stderr)
				}
			}
			if got := c.bundles(t, tt.args[2]); !slices.Equal(got, tt.nodes) {
				t.Errorf("bundles of %v, want %v", got, tt.nodes)
			}
			if tt.asked == nil {
				return
			}
			c.await(t, "the record of what it asked for", func() error {
				if all := c.asked(t, tt.u.name, before); !slices.Equal(slices.Sorted(maps.Keys(all)), tt.asked) {
					return fmt.Errorf("%v, want %q", all, tt.asked)
				}
				return nil
			})
			for what, code := range c.asked(t, tt.u.name, before) {
				if tt.u == doctor && code >= 400 && code != 500 {
					t.Errorf("it was refused to %s: code %d", what, code)
				}
			}
		})
	}
	t.Run("start pods", func(t *testing.T) { c.testStartPods(t, doctor) })
	t.Run("kubectl by POST", func(t *testing.T) { c.testByPost(t, doctor) })
	t.Run("doctor", func(t *testing.T) {
		stdout, stderr, exit := c.plugin(t, doctor, "doctor", "-o", "compared")
		if !strings.Contains(stdout, "INCOMPLETE: 1 node gave no bundle: node-down: ") || exit != 3 && exit != 4 {
			t.Errorf("exit code %d: %s%s", exit, stdout, stderr)
		}
	})
}

// testStartPods: with the larger role a pod is started on a node without one, gives a bundle, and is gone afterwards.
func (c *cluster) testStartPods(t *testing.T, doctor *user) {
	rendered, err := render(natkitChart(t), map[string]any{"doctorRole": map[string]any{"enabled": true, "startPods": true}})
	if err != nil {
		t.Fatal(err)
	}
	c.kubectlWith(t, rendered["doctorrole.yaml"], "apply", "-f", "-")
	before := c.recorded(t)
	_, stderr, exit := c.plugin(t, doctor, "collect", "-o", "started", "-i", "registry.example.net/natkit:1", "node-windows")
	if got := c.bundles(t, "started"); exit != 0 || !slices.Equal(got, []string{"node-windows"}) {
		t.Errorf("exit code %d, bundles of %v: %s", exit, got, stderr)
	}
	rights := []string{"create pods monitoring", "delete pods monitoring", "get pods monitoring", "get pods/exec monitoring", "list nodes", "list pods monitoring", "watch pods monitoring"}
	c.await(t, "the record of what it asked for", func() error {
		if all := c.asked(t, doctor.name, before); !slices.Equal(slices.Sorted(maps.Keys(all)), rights) {
			return fmt.Errorf("%v, want %q", all, rights)
		}
		return nil
	})
	_, stderr, exit = c.plugin(t, doctor, "collect", "-o", "waiting", "-t", "3", "-i", badImage, "node-windows")
	if exit != 4 || !strings.Contains(stderr, "kubectl natkit: node-windows: the pod that was started there is not ready after 3 s: Pending  ErrImagePull\n") {
		t.Errorf("an image that does not come: exit code %d: %s", exit, stderr)
	}
	c.await(t, "the pods that were started are gone", func() error {
		left := c.kubectl(t, "-n", "monitoring", "get", "pods", "-l", "app.kubernetes.io/component=doctor", "-o", "name")
		if left != "" {
			return errors.New(left)
		}
		return nil
	})
}

// testByPost: kubectl before 1.31 knows no WebSocket, and is let in by the same roles; which of both verbs is missing the API server
// says.
func (c *cluster) testByPost(t *testing.T, doctor *user) {
	t.Setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
	before := c.recorded(t)
	if _, stderr, exit := c.plugin(t, doctor, "collect", "-o", "post", "node-a"); exit != 0 {
		t.Errorf("exit code %d: %s", exit, stderr)
	}
	c.await(t, "a command by POST on record", func() error {
		if all := c.asked(t, doctor.name, before); all["create pods/exec monitoring"] == 0 {
			return fmt.Errorf("%v", all)
		}
		return nil
	})
	c.kubectl(t, "-n", "monitoring", "patch", "role", "natkit-doctor", "--type=json", `-p=[{"op": "replace", "path": "/rules/1/verbs", "value": ["get"]}]`)
	for _, websockets := range []string{"false", "true"} {
		t.Setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets)
		_, stderr, exit := c.plugin(t, doctor, "collect", "-o", "without-create-"+websockets, "node-a")
		if exit != 4 || !strings.Contains(stderr, `is forbidden: User "doctor" cannot create resource "pods/exec"`) {
			t.Errorf("without the right to create: exit code %d: %s", exit, stderr)
		}
	}
	c.kubectl(t, "apply", "-f", filepath.Join(c.repo, "deploy/kubernetes/doctor-role.yaml"))
}

// testDebug: the command of docs/kubernetes.md for one node makes a pod in the namespace of the level that it needs.
func (c *cluster) testDebug(t *testing.T) {
	// Nobody attaches to it: that is what a kubelet does.
	command := c.commands(t, "docs/kubernetes.md", "kubectl debug", "NODE", "node-b", "REGISTRY", "registry.example.net", "VERSION", "1.2.3", " -it ", " ")
	c.shell(t, c.repo, command)
	got := c.kubectl(t, "-n", "monitoring", "get", "pods", "-l", "app.kubernetes.io/managed-by=kubectl-debug", "-o",
		"jsonpath={range .items[*]}{.spec.nodeName} {.spec.hostNetwork} {.spec.hostPID} {.spec.containers[0].securityContext.privileged} {.spec.containers[0].image} {.spec.containers[0].command}{end}")
	if got != `node-b true true true registry.example.net/natkit-readonly:1.2.3 ["/usr/bin/natkit","doctor"]` {
		t.Errorf("the pod is %s", got)
	}
	_, stderr, exit := c.run(t, c.admin, "", "bash", "-c", strings.Replace(command, "-n monitoring", "-n level-baseline", 1))
	if exit == 0 || !strings.Contains(stderr, "violates PodSecurity") {
		t.Errorf("in a namespace of the level baseline: exit code %d: %s", exit, stderr)
	}
}
