package names

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
)

// Container is what a runtime wrote down about one of its containers. What is not known is empty.
type Container struct {
	ID string
	// Name is the one that people gave it, Pod NAMESPACE/NAME of Kubernetes.
	Name, Pod string
	// Addresses are those that it had when that was written.
	Addresses []netip.Addr
}

// Labels of pods by kubelet (pkg/kubelet/types/labels.go), which Docker and CRI-O keep, and the annotations of
// containerd (pkg/cri/annotations).
const (
	labelPod          = "io.kubernetes.pod.name"
	labelPodNamespace = "io.kubernetes.pod.namespace"
	labelContainer    = "io.kubernetes.container.name"
	criPod            = "io.kubernetes.cri.sandbox-name"
	criPodNamespace   = "io.kubernetes.cri.sandbox-namespace"
	criContainer      = "io.kubernetes.cri.container-name"
	nerdctlName       = "nerdctl/name"
)

// podOf is the pod that labels or annotations name.
func podOf(labels map[string]string) string {
	namespace, name := cmp.Or(labels[labelPodNamespace], labels[criPodNamespace]), cmp.Or(labels[labelPod], labels[criPod])
	if namespace == "" || name == "" {
		return ""
	}
	return namespace + "/" + name
}

// dockerNetworks are the networks that a container of Docker is in, by their names.
type dockerNetworks map[string]*struct {
	IPAddress         string
	GlobalIPv6Address string
}

func (n dockerNetworks) addresses() (all []netip.Addr) {
	for _, network := range n {
		if network == nil {
			continue
		}
		for _, text := range []string{network.IPAddress, network.GlobalIPv6Address} {
			if a, err := netip.ParseAddr(text); err == nil {
				all = append(all, a.Unmap())
			}
		}
	}
	return all
}

// ParseDockerState reads config.v2.json of Docker's directory of a container (container.Container of moby).
func ParseDockerState(data []byte) (*Container, error) {
	var c struct {
		ID, Name string
		State    struct{ Running bool }
		Config   struct{ Labels map[string]string }

		NetworkSettings struct{ Networks dockerNetworks }
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("parse Docker's config.v2.json: %w", err)
	}
	known := &Container{ID: c.ID, Name: strings.TrimPrefix(c.Name, "/"), Pod: podOf(c.Config.Labels)}
	if c.State.Running {
		known.Addresses = c.NetworkSettings.Networks.addresses()
	}
	return known, nil
}

// ParseDockerList reads the answer of Docker's API to GET /containers/json: those that run.
func ParseDockerList(data []byte) ([]Container, error) {
	var list []struct {
		ID    string `json:"Id"`
		Names []string

		Labels          map[string]string
		NetworkSettings struct{ Networks dockerNetworks }
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("parse Docker's list of containers: %w", err)
	}
	var all []Container
	for _, c := range list {
		known := Container{ID: c.ID, Pod: podOf(c.Labels), Addresses: c.NetworkSettings.Networks.addresses()}
		for _, name := range c.Names {
			// Those of links are /OTHER/ALIAS.
			if name = strings.TrimPrefix(name, "/"); !strings.Contains(name, "/") {
				known.Name = name
				break
			}
		}
		all = append(all, known)
	}
	return all, nil
}

// ParseSpec reads the annotations of a container's config.json (OCI runtime specification), which containerd, CRI-O
// and nerdctl set.
func ParseSpec(data []byte) (*Container, error) {
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, fmt.Errorf("parse a container's config.json: %w", err)
	}
	a := spec.Annotations
	return &Container{Name: cmp.Or(a[criContainer], a[labelContainer], a[nerdctlName]), Pod: podOf(a)}, nil
}

// ParseStorage reads containers.json of containers/storage, in which Podman and CRI-O name their containers.
func ParseStorage(data []byte) ([]Container, error) {
	var list []struct {
		ID    string   `json:"id"`
		Names []string `json:"names"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("parse containers.json of containers/storage: %w", err)
	}
	var all []Container
	for _, c := range list {
		if len(c.Names) > 0 {
			all = append(all, Container{ID: c.ID, Name: c.Names[0]})
		}
	}
	return all, nil
}

// ParseLease reads a file of the CNI plugin host-local, whose name is the address: the ID of the container or of the
// pod's sandbox, and its interface (plugins/ipam/host-local/backend/disk).
func ParseLease(name, text string) (address netip.Addr, id string, ok bool) {
	// A file system without ':' in names has '_'.
	address, err := netip.ParseAddr(strings.ReplaceAll(name, "_", ":"))
	if err != nil {
		return address, "", false
	}
	id, _, _ = strings.Cut(text, "\n")
	id = strings.TrimSpace(id)
	return address.Unmap(), id, IsID(id)
}

// IsID reports whether a text may be the ID of a container: it becomes part of a path.
func IsID(text string) bool {
	if text == "" || len(text) > 128 || text[0] == '.' {
		return false
	}
	return !strings.ContainsFunc(text, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '-' && r != '_' && r != '.'
	})
}

// ParsePodLogs reads the name of a directory in which kubelet keeps a pod's logs: NAMESPACE_NAME_UID
// (pkg/kubelet/kuberuntime, BuildPodLogsDirectory).
func ParsePodLogs(dir string) (pod, uid string, ok bool) {
	parts := strings.Split(dir, "_")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return "", "", false
	}
	return parts[0] + "/" + parts[1], parts[2], true
}
