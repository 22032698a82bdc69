package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
)

// insideEnv marks the run of a test in the network namespace of its own.
const insideEnv = "NATKIT_CLUSTER_NAMESPACE"

// TestCluster tries the manifests, their rights and 'kubectl natkit' on a cluster: etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler on loopback in a network namespace of its own. There is no kubelet: the test
// plays it (kubelet_test.go).
func TestCluster(t *testing.T) {
	if os.Getenv("NATKIT_KUBERNETES") == "" {
		t.Skip("takes a cluster, which 'make nightly PART=kubernetes' builds")
	}
	if os.Getenv(insideEnv) == "" {
		enclose(t)
		return
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("set lo up: %v: %s", err, out)
	}
	c := startCluster(t)
	t.Run("version", c.testVersion)
	t.Run("install", c.testInstall)
	t.Run("chart", c.testChart)
	t.Run("refused", c.testRefused)
	t.Run("pod security", c.testPodSecurity)
	t.Run("daemonset", c.testDaemonSet)
	t.Run("pod", c.testPod)
	t.Run("service account", c.testServiceAccount)
	t.Run("doctor role", c.testDoctorRole)
	t.Run("plugin", c.testPlugin)
	t.Run("debug", c.testDebug)
}

// enclose runs the test again in a network namespace that ends with it.
func enclose(t *testing.T) {
	chosen := cmp.Or(flag.Lookup("test.run").Value.String(), "^TestCluster$")
	again := exec.Command("/proc/self/exe", "-test.v", "-test.run="+chosen, "-test.timeout="+flag.Lookup("test.timeout").Value.String())
	again.Env = append(os.Environ(), insideEnv+"=1")
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	again.Stdout, again.Stderr = os.Stdout, os.Stderr
	if err := again.Run(); err != nil {
		t.Fatalf("in a network namespace: %v", err)
	}
}

// cluster is a running one.
type cluster struct {
	dir, repo string
	pki       *pki
	admin     *user
	auditLog  string
	kubelet   *kubelet
}

const server = "https://127.0.0.1:6443"

func startCluster(t *testing.T) *cluster {
	t.Helper()
	repo, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{dir: t.TempDir(), repo: repo}
	c.pki = newPKI(t, c.dir)
	c.auditLog = filepath.Join(c.dir, "audit.log")
	c.startEtcd(t)
	c.startAPIServer(t)
	c.admin = c.newUser(t, "admin", "system:masters")
	c.await(t, "kube-apiserver answers", func() error { _, err := c.admin.get("/readyz", nil); return err })
	config := c.kubeconfig(t, c.admin)
	c.start(t, "kube-controller-manager", "--kubeconfig="+config, "--leader-elect=false", "--bind-address=127.0.0.1",
		"--controllers=daemonset-controller,serviceaccount-controller,namespace-controller,garbage-collector-controller",
		"--service-account-private-key-file="+c.pki.key("accounts"))
	c.start(t, "kube-scheduler", "--kubeconfig="+config, "--leader-elect=false", "--bind-address=127.0.0.1")
	c.kubelet = startKubelet(t, c)
	return c
}

func (c *cluster) startEtcd(t *testing.T) {
	cert, key := c.pki.issue(t, "etcd", "")
	c.start(t, "etcd", "--data-dir="+filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls=https://127.0.0.1:2379", "--advertise-client-urls=https://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380", "--initial-cluster=default=http://127.0.0.1:2380",
		"--cert-file="+cert, "--key-file="+key, "--client-cert-auth", "--trusted-ca-file="+c.pki.ca)
}

// The API server is one as kubeadm starts it: RBAC, the usual admission, requests on record.
func (c *cluster) startAPIServer(t *testing.T) {
	cert, key := c.pki.issue(t, "kube-apiserver", "")
	kubeletCert, kubeletKey := c.pki.issue(t, "kube-apiserver-kubelet-client", "system:masters")
	c.pki.issue(t, "accounts", "")
	policy := c.write(t, "audit.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived, ResponseStarted]\nrules: [{level: Metadata}]\n")
	c.start(t, "kube-apiserver", "--etcd-servers=https://127.0.0.1:2379", "--etcd-cafile="+c.pki.ca, "--etcd-certfile="+cert, "--etcd-keyfile="+key,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none", "--service-cluster-ip-range=198.18.0.0/24",
		"--client-ca-file="+c.pki.ca, "--tls-cert-file="+cert, "--tls-private-key-file="+key,
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+c.pki.key("accounts"), "--service-account-signing-key-file="+c.pki.key("accounts"),
		"--kubelet-certificate-authority="+c.pki.ca, "--kubelet-client-certificate="+kubeletCert, "--kubelet-client-key="+kubeletKey, "--kubelet-preferred-address-types=InternalIP",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--audit-policy-file="+policy, "--audit-log-path="+c.auditLog)
}

// program returns the path of one that 'scripts/setup kubernetes' made, or of the checkout.
func (c *cluster) program(t *testing.T, name string) string {
	t.Helper()
	for _, dir := range []string{".cache/bin", "bin", "deploy"} {
		path := filepath.Join(c.repo, dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path
		}
	}
	t.Fatalf("there is no %s: 'scripts/setup kubernetes' and 'make build' make what this test runs", name)
	return ""
}

// start runs a program until the test ends; what it says is shown if the test fails.
func (c *cluster) start(t *testing.T, name string, args ...string) {
	t.Helper()
	c.startCommand(t, name, exec.Command(c.program(t, name), args...))
}

func (c *cluster) startCommand(t *testing.T, name string, cmd *exec.Cmd) {
	t.Helper()
	var output lastLines
	cmd.Dir, cmd.Env = c.dir, append(append(os.Environ(), "HOME="+c.dir), cmd.Env...)
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the last lines of %s:\n%s", name, output.String())
		}
	})
}

// lastLines keeps the end of what a program says. Only its process writes to it, and it is read when that has ended.
type lastLines struct{ kept []byte }

func (l *lastLines) Write(p []byte) (int, error) {
	const most = 4096
	l.kept = append(l.kept, p...)
	l.kept = l.kept[max(0, len(l.kept)-most):]
	return len(p), nil
}

func (l *lastLines) String() string { return string(l.kept) }

// await calls check until it returns nil.
func (c *cluster) await(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.After(3 * time.Minute)
	every := time.NewTicker(50 * time.Millisecond)
	defer every.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s: not within 3 minutes: %v", what, err)
		case <-every.C:
		}
	}
}

func (c *cluster) write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// user is who asks the API server: a person by a certificate, or a service account by a token.
type user struct {
	name, token string
	client      *http.Client
}

// newUser returns a person of a group, whom the cluster knows by a certificate.
func (c *cluster) newUser(t *testing.T, name, group string) *user {
	t.Helper()
	c.pki.issue(t, name, group)
	return &user{name: name, client: c.pki.client(t, name)}
}

// account returns the service account that a token of it stands for.
func (c *cluster) account(t *testing.T, namespace, name string) *user {
	t.Helper()
	return &user{name: name, token: strings.TrimSpace(c.kubectl(t, "create", "token", name, "-n", namespace)), client: c.pki.client(t, "")}
}

// kubeconfig writes the one of some users, of whom each has a context; the first one's is used where none is named.
func (c *cluster) kubeconfig(t *testing.T, users ...*user) string {
	t.Helper()
	type named = map[string]any
	var contexts, all []named
	for _, u := range users {
		contexts = append(contexts, named{"name": u.name, "context": named{"cluster": "test", "user": u.name}})
		all = append(all, named{"name": u.name, "user": named{"client-certificate": c.pki.cert(u.name), "client-key": c.pki.key(u.name)}})
	}
	text, err := json.Marshal(named{"apiVersion": "v1", "kind": "Config", "current-context": users[0].name, "contexts": contexts, "users": all,
		"clusters": []named{{"name": "test", "cluster": named{"server": server, "certificate-authority": c.pki.ca}}}})
	if err != nil {
		t.Fatal(err)
	}
	return c.write(t, users[0].name+".kubeconfig", string(text))
}

func (u *user) get(path string, into any) ([]string, error) { return u.send("GET", path, nil, into) }

// send asks the API server, and returns its warnings. An error of it is a *refusal.
func (u *user) send(method, path string, object, into any) ([]string, error) {
	var body []byte
	var err error
	if object != nil {
		if body, err = json.Marshal(object); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, server+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if method == "PATCH" {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	if u.token != "" {
		request.Header.Set("Authorization", "Bearer "+u.token)
	}
	response, err := u.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 300 {
		r := &refusal{Status: meta.Status{Message: string(text)}}
		_ = json.Unmarshal(text, &r.Status)
		r.Code = int32(response.StatusCode)
		return nil, r
	}
	if into != nil {
		err = json.Unmarshal(text, into)
	}
	return response.Header.Values("Warning"), err
}

// refusal is an error that the API server answers with.
type refusal struct{ meta.Status }

func (r *refusal) Error() string { return fmt.Sprintf("%d %s", r.Code, r.Message) }

// code is what the API server answered with: 200 where it did what it was asked for.
func code(t *testing.T, err error) int {
	t.Helper()
	var r *refusal
	switch {
	case err == nil:
		return 200
	case errors.As(err, &r):
		return int(r.Code)
	}
	t.Fatal(err)
	return 0
}

// run is a command in the cluster's directory, with kubectl on the PATH and a kubeconfig.
func (c *cluster) run(t *testing.T, u *user, input, name string, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.dir, strings.NewReader(input), &out, &errs
	cmd.Env = append(os.Environ(), "HOME="+c.dir, "KUBECONFIG="+c.kubeconfig(t, u), "PATH="+filepath.Dir(c.program(t, "kubectl"))+":"+os.Getenv("PATH"), "NATKIT="+c.program(t, "natkit"))
	err := cmd.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatalf("%s %q: %v", name, args, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// kubectl runs it as the administrator, and returns what it printed.
func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return c.kubectlWith(t, "", args...)
}

func (c *cluster) kubectlWith(t *testing.T, input string, args ...string) string {
	t.Helper()
	stdout, stderr, exit := c.run(t, c.admin, input, "kubectl", args...)
	if exit != 0 {
		t.Fatalf("kubectl %q: exit code %d: %s%s", args, exit, stdout, stderr)
	}
	return stdout
}

// testVersion: the API server is of the release whose types the manifests are checked by.
func (c *cluster) testVersion(t *testing.T) {
	var v version.Info
	if _, err := c.admin.get("/version", &v); err != nil {
		t.Fatal(err)
	}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		t.Fatal("this test has no list of its modules")
	}
	for _, m := range build.Deps {
		if m.Path == "k8s.io/api" && "v1."+strings.TrimPrefix(m.Version, "v0.") != v.GitVersion {
			t.Errorf("the types are of k8s.io/api %s, the API server is %s", m.Version, v.GitVersion)
		}
	}
	etcd, _, _ := c.run(t, c.admin, "", c.program(t, "etcd"), "--version")
	t.Logf("kube-apiserver %s, %s", v.GitVersion, strings.SplitN(etcd, "\n", 2)[0])
}

// asked returns what a user asked of the API server since a place in its record, with the code of the last answer, without
// questions about its kinds.
func (c *cluster) asked(t *testing.T, name string, from int64) map[string]int {
	t.Helper()
	text, err := os.ReadFile(c.auditLog)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for line := range strings.Lines(string(text[from:])) {
		if !strings.HasSuffix(line, "\n") {
			break // is being written
		}
		var r request
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v in a line of the audit log: %s", err, line)
		}
		if r.User.Username == name && r.Object.Resource != "" {
			all[r.String()] = r.Response.Code
		}
	}
	return all
}

// recorded returns the place where the API server's record ends.
func (c *cluster) recorded(t *testing.T) int64 {
	t.Helper()
	info, err := os.Stat(c.auditLog)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// request is a line of the API server's audit log.
type request struct {
	Verb     string
	User     struct{ Username string }
	Object   struct{ Resource, Subresource, Namespace string } `json:"objectRef"`
	Response struct{ Code int }                                `json:"responseStatus"`
}

func (r request) String() string {
	resource := r.Object.Resource
	if r.Object.Subresource != "" {
		resource += "/" + r.Object.Subresource
	}
	return strings.TrimSpace(r.Verb + " " + resource + " " + r.Object.Namespace)
}
