//go:build linux

package collect

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
)

// OwnerOf returns whose a namespace is: by the control group of the first process in it, which programs
// that keep containers name after them.
func OwnerOf(f netns.Found) snapshot.Owner {
	o := snapshot.Owner{Netns: f.Name, PID: f.PID, Path: f.Path}
	if o.PID == 0 {
		if m := holder.FindStringSubmatch(f.Path); m != nil {
			o.PID, _ = strconv.Atoi(m[1])
			o.Held = true
		}
	}
	if o.PID == 0 {
		return o
	}
	proc := fmt.Sprintf("/proc/%d/", o.PID)
	o.Process = strings.TrimSpace(readUpTo(proc + "comm"))
	byCgroup(&o, readUpTo(proc+"cgroup"))
	if o.Runtime == "docker" {
		o.ContainerName = dockerName(readUpTo("/var/lib/docker/containers/" + o.Container + "/config.v2.json"))
	}
	if o.Pod != "" {
		o.Pod = podName(o.Pod)
	}
	return o
}

// holder is a descriptor by which a process holds a namespace.
var holder = regexp.MustCompile(`^/proc/(?:\d+/task/)?(\d+)/fd/`)

// ownerFileMax bounds what is read of a file: the configuration of a container has some kilobytes.
const ownerFileMax = 1 << 20

func readUpTo(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, ownerFileMax))
	return string(b)
}

const containerID = `([0-9a-f]{32,64})`

// cgroupNames are how programs name the control groups of containers, pods and units.
var cgroupNames = []struct {
	pattern *regexp.Regexp
	runtime string
	set     func(o *snapshot.Owner, name string)
}{
	{regexp.MustCompile(`/docker[/-]` + containerID), "docker", setContainer},
	{regexp.MustCompile(`/libpod-` + containerID), "podman", setContainer},
	{regexp.MustCompile(`/cri-containerd-` + containerID), "containerd", setContainer},
	{regexp.MustCompile(`/crio-` + containerID), "cri-o", setContainer},
	{regexp.MustCompile(`/kubepods[^\n]*/pod[-0-9a-f]+/` + containerID), "kubernetes", setContainer},
	{regexp.MustCompile(`/lxc(?:/|\.payload[./])([^/\n]+)`), "lxc", setContainer},
	{regexp.MustCompile(`/systemd-nspawn@([^/\n]+)\.service`), "nspawn", setContainer},
	{regexp.MustCompile(`[-/]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})`), "", func(o *snapshot.Owner, uid string) { o.Pod = strings.ReplaceAll(uid, "_", "-") }},
	{regexp.MustCompile(`[^\n]*/([^/\n]+\.service)`), "", func(o *snapshot.Owner, unit string) { o.Unit = unit }},
}

func setContainer(o *snapshot.Owner, id string) {
	if o.Container == "" {
		o.Container = id
	}
}

// byCgroup reads /proc/PID/cgroup (cgroups(7)): a line for each hierarchy, of which version 2
// has one.
func byCgroup(o *snapshot.Owner, text string) {
	for _, n := range cgroupNames {
		m := n.pattern.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		if o.Container == "" {
			o.Runtime = n.runtime
		}
		n.set(o, unescapeUnit(m[1]))
	}
	if o.Container == "" {
		o.Runtime = ""
	}
}

// unescapeUnit undoes \xNN of systemd.unit(5).
func unescapeUnit(name string) string {
	return escaped.ReplaceAllStringFunc(name, func(e string) string {
		n, _ := strconv.ParseUint(e[2:], 16, 8)
		return string([]byte{byte(n)})
	})
}

// dockerName reads the name out of Docker's configuration of a container.
func dockerName(config string) string {
	var c struct{ Name string }
	_ = json.Unmarshal([]byte(config), &c)
	return strings.TrimPrefix(c.Name, "/")
}

// podName returns NAMESPACE/NAME of the pod of that UID, by the directory that kubelet
// keeps its logs in; the UID where there is none.
func podName(uid string) string {
	dirs, _ := filepath.Glob("/var/log/pods/*_" + uid)
	for _, dir := range dirs {
		if parts := strings.Split(filepath.Base(dir), "_"); len(parts) == 3 {
			return parts[0] + "/" + parts[1]
		}
	}
	return uid
}
