package names

import (
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/natkit/natkit/internal/snapshot"
)

const containerID = `([0-9a-f]{32,64})`

// Runtimes whose containers have files of their own.
const (
	docker     = "docker"
	podman     = "podman"
	containerd = "containerd"
	crio       = "cri-o"
)

// cgroupName is how a program names control groups.
type cgroupName struct {
	pattern *regexp.Regexp
	runtime string
	set     func(o *snapshot.Owner, name string)
}

// cgroupNames are how programs name the control groups of containers, pods and units. Most starts of natkit do without.
var cgroupNames = sync.OnceValue(func() []cgroupName {
	return []cgroupName{
		{regexp.MustCompile(`/docker[/-]` + containerID), docker, setContainer},
		{regexp.MustCompile(`/libpod-` + containerID), podman, setContainer},
		{regexp.MustCompile(`/cri-containerd-` + containerID), containerd, setContainer},
		{regexp.MustCompile(`/crio-` + containerID), crio, setContainer},
		{regexp.MustCompile(`/kubepods[^\n]*/pod[-0-9a-f]+/` + containerID), "kubernetes", setContainer},
		{regexp.MustCompile(`/lxc(?:/|\.payload[./])([^/\n]+)`), "lxc", setContainer},
		{regexp.MustCompile(`/systemd-nspawn@([^/\n]+)\.service`), "nspawn", setContainer},
		{regexp.MustCompile(`[-/]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})`), "", func(o *snapshot.Owner, uid string) { o.Pod = strings.ReplaceAll(uid, "_", "-") }},
		{regexp.MustCompile(`[^\n]*/([^/\n]+\.service)`), "", func(o *snapshot.Owner, unit string) { o.Unit = unit }},
	}
})

func setContainer(o *snapshot.Owner, id string) {
	if o.Container == "" {
		o.Container = id
	}
}

// ByCgroup reads /proc/PID/cgroup (cgroups(7)), a line for each hierarchy, of which version 2 has one: the
// container, the UID of the pod and the unit of a process.
func ByCgroup(o *snapshot.Owner, text string) {
	for _, n := range cgroupNames() {
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

// escaped is a character that systemd does not take for a name (systemd.unit(5)).
var escaped = regexp.MustCompile(`\\x[0-9a-f]{2}`)

// unescapeUnit undoes \xNN of systemd.unit(5).
func unescapeUnit(name string) string {
	return escaped.ReplaceAllStringFunc(name, func(e string) string {
		n, _ := strconv.ParseUint(e[2:], 16, 8)
		return string([]byte{byte(n)})
	})
}
