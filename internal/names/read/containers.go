//go:build linux

package read

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/names"
	"github.com/natkit/natkit/internal/snapshot"
)

// Where runtimes keep what they know, below the root.
const (
	dockerDir    = "var/lib/docker/containers"
	dockerPID    = "run/docker.pid"
	dockerSocket = "run/docker.sock"
	storageNames = "var/lib/containers/storage/*-containers/containers.json"
	storageSpecs = "run/containers/storage/*-containers"
	podLogs      = "var/log/pods"
	leases       = "var/lib/cni/networks"
)

// taskDirs are the directories of containerd's namespaces, each with a directory for each container: its own, and that
// of k3s and RKE2.
var taskDirs = []string{"run/containerd/io.containerd.runtime.v2.task/*", "run/k3s/containerd/io.containerd.runtime.v2.task/*"}

// Bounds of what is read: a file, the answer of Docker, and how long that is waited for.
const (
	fileMax   = 1 << 20
	answerMax = 16 << 20
	apiLimit  = 200 * time.Millisecond
)

// host is the files of a host below a directory. What was read of several containers at once is kept.
type host struct {
	root string
	// asks is true where Docker's daemon may be asked for containers whose files cannot be read.
	asks bool

	tasks, specs []string
	globbed      bool
	states       map[string]*names.Container
	stored       map[string]names.Container
	pods         map[string]string
	answered     map[string]names.Container
}

func (h *host) path(name string) string { return filepath.Join("/", h.root, name) }

// file is the beginning of a file; empty where it cannot be read.
func (h *host) file(name string) string { return h.start(name, fileMax) }

func (h *host) start(name string, most int64) string {
	f, err := os.Open(h.path(name))
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, most))
	return string(b)
}

// name completes what the control group says of a container or a pod, and returns where that was read.
func (h *host) name(ctx context.Context, o *snapshot.Owner) (source string) {
	if c, from := h.container(ctx, o.Runtime, o.Container); c != nil {
		o.ContainerName, source = c.Name, from
		if c.Pod != "" {
			o.Pod = c.Pod
		}
	}
	if o.Pod != "" && !strings.Contains(o.Pod, "/") {
		if pod := h.podOf(o.Pod); pod != "" {
			o.Pod, source = pod, names.SourcePodLogs
		}
	}
	return source
}

// container is what is known of one; nil where nothing is.
func (h *host) container(ctx context.Context, runtime, id string) (c *names.Container, source string) {
	if !names.IsID(id) {
		return nil, ""
	}
	lookups := map[string]func(context.Context, string) (*names.Container, string){
		"docker": h.ofDocker, "podman": h.ofStorage, "containerd": h.ofContainerd, "cri-o": h.ofStorage,
	}
	if lookup := lookups[runtime]; lookup != nil {
		return lookup(ctx, id)
	}
	if runtime != "kubernetes" && runtime != "" { // its name is its ID
		return nil, ""
	}
	for _, one := range []string{"containerd", "cri-o", "docker"} {
		if c, source = lookups[one](ctx, id); c != nil {
			return c, source
		}
	}
	return nil, ""
}

// ofDocker reads Docker's own file first: that is there in microseconds, and a daemon with other things to do is left
// alone.
func (h *host) ofDocker(ctx context.Context, id string) (*names.Container, string) {
	if c := h.dockerState(id); c != nil && c.Name != "" {
		return c, names.SourceDocker
	}
	if c, ok := h.askDocker(ctx)[id]; ok {
		return &c, names.SourceDockerAPI
	}
	return nil, ""
}

// dockerState is what Docker's file says of a container; nil where it has none.
func (h *host) dockerState(id string) *names.Container {
	if c, known := h.states[id]; known {
		return c
	}
	c, err := names.ParseDockerState([]byte(h.file(filepath.Join(dockerDir, id, "config.v2.json"))))
	if err != nil {
		c = nil
	}
	if h.states == nil {
		h.states = map[string]*names.Container{}
	}
	h.states[id] = c
	return c
}

func (h *host) ofContainerd(_ context.Context, id string) (*names.Container, string) {
	h.glob()
	for _, dir := range h.tasks {
		if c, err := names.ParseSpec([]byte(h.file(filepath.Join(dir, id, "config.json")))); err == nil {
			if c.Name == "" && len(id) < shortest { // one that people named: ctr run … NAME
				c.Name = id
			}
			if c.ID = id; c.Name != "" || c.Pod != "" {
				return c, names.SourceContainerd
			}
		}
	}
	return nil, ""
}

// shortest is how long an ID is that no person chose.
const shortest = 32

// ofStorage reads what containers/storage keeps, of CRI-O and Podman.
func (h *host) ofStorage(_ context.Context, id string) (found *names.Container, source string) {
	h.glob()
	for _, dir := range h.specs {
		if c, err := names.ParseSpec([]byte(h.file(filepath.Join(dir, id, "userdata/config.json")))); err == nil && (c.Name != "" || c.Pod != "") {
			c.ID = id
			return c, names.SourceStorage
		}
	}
	if h.stored == nil {
		h.stored = map[string]names.Container{}
		for _, file := range h.matches(storageNames) {
			list, _ := names.ParseStorage([]byte(h.start(file, answerMax)))
			for _, c := range list {
				h.stored[c.ID] = c
			}
		}
	}
	if c, ok := h.stored[id]; ok {
		return &c, names.SourceNamesFile
	}
	return nil, ""
}

func (h *host) glob() {
	if h.globbed {
		return
	}
	h.globbed = true
	for _, pattern := range taskDirs {
		h.tasks = append(h.tasks, h.matches(pattern)...)
	}
	h.specs = h.matches(storageSpecs)
}

// matches are the paths of a pattern, below the root.
func (h *host) matches(pattern string) (paths []string) {
	found, _ := filepath.Glob(h.path(pattern))
	for _, path := range found {
		if rel, err := filepath.Rel(h.path(""), path); err == nil {
			paths = append(paths, rel)
		}
	}
	return paths
}

// podOf is NAMESPACE/NAME of the pod of a UID; empty where it is not known.
func (h *host) podOf(uid string) string {
	if h.pods == nil {
		h.pods = map[string]string{}
		entries, _ := os.ReadDir(h.path(podLogs))
		for _, e := range entries {
			if pod, uid, ok := names.ParsePodLogs(e.Name()); ok {
				h.pods[uid] = pod
			}
		}
	}
	return h.pods[uid]
}

// askDocker lists the containers by Docker's socket, once. Where no daemon runs nothing is asked: systemd listens at
// the socket then (docker.socket), and would start it.
func (h *host) askDocker(ctx context.Context) map[string]names.Container {
	if h.answered != nil || !h.asks {
		return h.answered
	}
	h.answered = map[string]names.Container{}
	if !h.dockerRuns() {
		return h.answered
	}
	list, err := askDocker(ctx, h.path(dockerSocket))
	if err != nil { // its containers have no names then
		return h.answered
	}
	for _, c := range list {
		h.answered[c.ID] = c
	}
	return h.answered
}

// dockerRuns reports whether the process of Docker's PID file is one of Docker.
func (h *host) dockerRuns() bool {
	pid, err := strconv.Atoi(strings.TrimSpace(h.file(dockerPID)))
	return err == nil && pid > 0 && strings.TrimSpace(h.file(filepath.Join("proc", strconv.Itoa(pid), "comm"))) == "dockerd"
}

// askDocker asks for the list of those that run. There is no other way out of natkit here than that socket.
func askDocker(ctx context.Context, socket string) ([]names.Container, error) {
	ctx, stop := context.WithTimeout(ctx, apiLimit)
	defer stop()
	client := &http.Client{Transport: &http.Transport{
		Proxy: nil, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/containers/json", nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, errors.New("Docker's API answers " + response.Status)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, answerMax))
	if err != nil {
		return nil, err
	}
	return names.ParseDockerList(data)
}

// mostLeases bounds the leases of a network plugin that are read.
const mostLeases = names.MostAddresses

// recorded adds the addresses that runtimes and network plugins wrote down. One of a container that is no more is left
// out: plugins leave leases behind.
func (h *host) recorded(ctx context.Context, book *names.Book, late func() bool) {
	entries, err := os.ReadDir(h.path(dockerDir))
	for _, e := range entries[:min(len(entries), mostLeases)] {
		if late() {
			return
		}
		if c := h.dockerState(e.Name()); c != nil {
			add(book, c, names.SourceDocker)
		}
	}
	if err != nil { // it is elsewhere, or only root may read it
		for _, c := range h.askDocker(ctx) {
			add(book, &c, names.SourceDockerAPI)
		}
	}
	h.leased(ctx, book, late)
}

func add(book *names.Book, c *names.Container, source string) {
	for _, a := range c.Addresses {
		book.Add(names.Recorded, a, nameOf(c, source))
	}
}

// leased adds the addresses of the network plugin host-local.
func (h *host) leased(ctx context.Context, book *names.Book, late func() bool) {
	networks, _ := os.ReadDir(h.path(leases))
	left := mostLeases
	for _, network := range networks {
		files, err := os.ReadDir(h.path(filepath.Join(leases, network.Name())))
		if errors.Is(err, fs.ErrPermission) {
			return
		}
		for _, f := range files {
			if left--; left < 0 || late() {
				return
			}
			address, id, ok := names.ParseLease(f.Name(), h.start(filepath.Join(leases, network.Name(), f.Name()), 512))
			if !ok {
				continue
			}
			if c, _ := h.container(ctx, "", id); c != nil && (c.Pod != "" || c.Name != "") {
				book.Add(names.Recorded, address, nameOf(c, names.SourceCNI))
			}
		}
	}
}

// nameOf is the name of a container, or of its pod.
func nameOf(c *names.Container, source string) snapshot.Name {
	name, _ := names.OfOwner(&snapshot.Owner{Container: c.ID, ContainerName: c.Name, Pod: c.Pod}, source)
	return name
}

// hosts adds what /etc/hosts says.
func (h *host) hosts(book *names.Book) {
	list, _ := names.ParseHosts(h.file("etc/hosts"))
	for _, l := range list {
		book.AddFirst(names.Written, l.Address, snapshot.Name{Kind: snapshot.NameHosts, Text: l.Name, Source: names.SourceHosts})
	}
}
