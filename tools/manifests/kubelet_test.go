package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// kubelet stands for those of all nodes: it says that pods run, and runs their commands on this machine, in the network
// namespace of the test, by the protocol of a real one. No container is started.
type kubelet struct {
	c       *cluster
	port    int
	natkit  string
	mu      sync.Mutex
	pods    map[string]core.Pod
	stopped sync.WaitGroup
}

// badImage is one that no registry has: its pods wait.
const badImage = "registry.invalid/none:1"

func startKubelet(t *testing.T, c *cluster) *kubelet {
	t.Helper()
	k := &kubelet{c: c, natkit: c.program(t, "natkit"), pods: map[string]core.Pod{}}
	c.pki.issue(t, "kubelet", "")
	config := c.pki.config(t, "kubelet")
	config.ClientAuth = tls.RequireAndVerifyClientCert
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	k.port = listener.Addr().(*net.TCPAddr).Port
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", k.exec)
	server := &http.Server{Handler: mux, ErrorLog: log.New(io.Discard, "", 0)}
	ctx, stop := context.WithCancel(context.Background())
	k.stopped.Go(func() { _ = server.Serve(listener) })
	k.stopped.Go(func() { k.run(ctx) })
	t.Cleanup(func() {
		stop()
		_ = server.Close()
		k.stopped.Wait()
	})
	return k
}

func (k *kubelet) run(ctx context.Context) {
	every := time.NewTicker(100 * time.Millisecond)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			k.sync()
		}
	}
}

// sync brings the pods that have a node to where a kubelet brings them. What is refused is tried again the next time.
func (k *kubelet) sync() {
	var all core.PodList
	if _, err := k.c.admin.get("/api/v1/pods", &all); err != nil {
		return
	}
	for _, pod := range all.Items {
		path := "/api/v1/namespaces/" + pod.Namespace + "/pods/" + pod.Name
		switch {
		case pod.Spec.NodeName == "":
		case pod.DeletionTimestamp != nil:
			_, _ = k.c.admin.send("DELETE", path+"?gracePeriodSeconds=0", nil, nil)
		case pod.Status.Phase == core.PodPending && pod.Spec.Containers[0].Image == badImage:
			_, _ = k.c.admin.send("PATCH", path+"/status", map[string]any{"status": waiting(pod)}, nil)
		case pod.Status.Phase == core.PodPending:
			k.mu.Lock()
			k.pods[pod.Namespace+"/"+pod.Name] = pod
			k.mu.Unlock()
			_, _ = k.c.admin.send("PATCH", path+"/status", map[string]any{"status": running(pod)}, nil)
		}
	}
}

func running(pod core.Pod) core.PodStatus {
	now, yes := meta.Now(), true
	s := core.PodStatus{Phase: core.PodRunning, StartTime: &now}
	for _, kind := range []core.PodConditionType{core.PodScheduled, core.PodInitialized, core.ContainersReady, core.PodReady} {
		s.Conditions = append(s.Conditions, core.PodCondition{Type: kind, Status: core.ConditionTrue, LastTransitionTime: now})
	}
	for _, c := range pod.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, core.ContainerStatus{Name: c.Name, Image: c.Image, Ready: true, Started: &yes,
			State: core.ContainerState{Running: &core.ContainerStateRunning{StartedAt: now}}})
	}
	return s
}

func waiting(pod core.Pod) core.PodStatus {
	c := pod.Spec.Containers[0]
	return core.PodStatus{Phase: core.PodPending, ContainerStatuses: []core.ContainerStatus{{Name: c.Name, Image: c.Image,
		State: core.ContainerState{Waiting: &core.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such host"}}}}}
}

func (k *kubelet) exec(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	name := r.PathValue("namespace") + "/" + r.PathValue("pod")
	remotecommand.ServeExec(w, r, k, name, "", r.PathValue("container"), r.URL.Query()["command"], options, time.Minute, time.Minute, remotecommand.SupportedStreamingProtocols)
}

// ExecInContainer runs a command with the environment of a container: its /usr/bin/natkit is that of the checkout, and
// there is no other program.
func (k *kubelet) ExecInContainer(ctx context.Context, name, _, container string, command []string, in io.Reader, out, errs io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	k.mu.Lock()
	pod := k.pods[name]
	k.mu.Unlock()
	if len(pod.Spec.Containers) != 1 || pod.Spec.Containers[0].Name != container {
		return errors.New("container not found (" + container + ")")
	}
	if command[0] != "/usr/bin/natkit" {
		_, _ = io.WriteString(errs, "exec failed: no such file or directory: "+command[0]+"\n")
		return utilexec.CodeExitError{Err: errors.New("exit status 127"), Code: 127}
	}
	cmd := exec.CommandContext(ctx, k.natkit, command[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	for _, e := range pod.Spec.Containers[0].Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, errs
	err := cmd.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return utilexec.CodeExitError{Err: err, Code: ended.ExitCode()}
	}
	return err
}

// addNode makes a node, if there is none of its name, whose kubelet listens at a port.
func (c *cluster) addNode(t *testing.T, name, system string, port int) {
	t.Helper()
	node := core.Node{ObjectMeta: meta.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": system, "kubernetes.io/hostname": name, "place": strings.TrimPrefix(name, "node-")}}}
	node.Kind, node.APIVersion = "Node", "v1"
	if _, err := c.admin.send("POST", "/api/v1/nodes", node, nil); code(t, err) != 200 && code(t, err) != 409 {
		t.Fatal(err)
	}
	now := meta.Now()
	resources := map[string]string{"cpu": "2", "memory": "4Gi", "pods": "110"}
	status := map[string]any{
		"capacity": resources, "allocatable": resources,
		"addresses":       []core.NodeAddress{{Type: core.NodeInternalIP, Address: "127.0.0.1"}, {Type: core.NodeHostName, Address: name}},
		"daemonEndpoints": map[string]any{"kubeletEndpoint": map[string]any{"Port": port}},
		"conditions":      []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionTrue, LastHeartbeatTime: now, LastTransitionTime: now, Reason: "KubeletReady"}},
	}
	if _, err := c.admin.send("PATCH", "/api/v1/nodes/"+name+"/status", map[string]any{"status": status}, nil); err != nil {
		t.Fatal(err)
	}
}
