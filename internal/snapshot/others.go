package snapshot

import "fmt"

// Survey is how far the other network namespaces of the host were read, twice: before and after the
// recording.
type Survey struct {
	// NotLoaded is true where no namespace can track connections.
	NotLoaded bool `json:"not_loaded,omitempty"`
	// NotBegun is true where it is not known whether this is the host's namespace, and so the one to read
	// others from: Error is why.
	NotBegun bool `json:"not_begun,omitempty"`
	// Found are the namespaces that were found, Examined those of them that were read, Empty
	// those of these that track no connection.
	Found    int64 `json:"found"`
	Examined int64 `json:"examined"`
	Empty    int64 `json:"empty"`
	// Unreached are those for which the time was too short, Unlisted those of which the counters
	// were read and not the table. SearchCut is true where there may be others still.
	Unreached int64 `json:"unreached"`
	Unlisted  int64 `json:"unlisted"`
	SearchCut bool  `json:"search_cut,omitempty"`
	// Refused could not be read. Error is the first reason, or why others may not have been found.
	Refused int64  `json:"refused"`
	Error   string `json:"error,omitempty"`
	// Seconds is the time that both readings took.
	Seconds float64 `json:"seconds"`
}

// Others is what a survey read.
type Others struct {
	Survey
	// Suspects are those in which anything points to a fault.
	Suspects []OtherNetns `json:"suspects"`
}

// OtherNetns is a namespace with what was read of it: a recording that has no more than the number of
// entries, the limit, counters, lines of the log that name it, and outcomes of one dump. Flows
// is nil where it was not dumped.
type OtherNetns struct {
	Owner     Owner      `json:"owner"`
	Recording *Recording `json:"recording"`
}

// Owner is whose a network namespace is, as far as that is known.
type Owner struct {
	// Netns is the name of 'ip netns list', Path another place where it can be opened, PID the
	// first process in it, or that holds it (Held), and Process its name.
	Netns   string `json:"netns,omitempty"`
	Path    string `json:"path,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Held    bool   `json:"held,omitempty"`
	Process string `json:"process,omitempty"`
	// Runtime is the program that keeps the container (docker, containerd, crio, podman, lxc,
	// nspawn), Container its ID and ContainerName its name.
	Runtime       string `json:"runtime,omitempty"`
	Container     string `json:"container,omitempty"`
	ContainerName string `json:"container_name,omitempty"`
	// Pod is NAMESPACE/NAME of Kubernetes, or the UID where that is all that is known.
	Pod string `json:"pod,omitempty"`
	// Unit is the systemd unit.
	Unit string `json:"unit,omitempty"`
}

// shortID is how much of a container's ID its programs show.
const shortID = 12

func (o Owner) String() string {
	process := fmt.Sprintf("%s, pid %d", o.Process, o.PID)
	switch {
	case o.Pod != "":
		return "pod " + o.Pod
	case o.Container != "" && o.ContainerName != "" && o.ContainerName != o.Container:
		return fmt.Sprintf("container %s (%s %.*s)", o.ContainerName, o.Runtime, shortID, o.Container)
	case o.Container != "":
		return fmt.Sprintf("%s container %.*s", o.Runtime, max(shortID, len(o.ContainerName)), o.Container)
	case o.Netns != "" && o.Unit != "":
		return fmt.Sprintf("network namespace %s (unit %s)", o.Netns, o.Unit)
	case o.Netns != "" && o.PID != 0:
		return fmt.Sprintf("network namespace %s (%s)", o.Netns, process)
	case o.Netns != "":
		return "network namespace " + o.Netns
	case o.Unit != "":
		return fmt.Sprintf("unit %s (%s)", o.Unit, process)
	case o.Held:
		return fmt.Sprintf("network namespace held by a process (%s)", process)
	case o.PID != 0:
		return fmt.Sprintf("process %s (pid %d)", o.Process, o.PID)
	}
	return "network namespace at " + o.Path
}

// Name is the name by which natkit finds the namespace, as that of Netns; empty where it has none.
func (o Owner) Name() string {
	switch {
	case o.Netns != "":
		return o.Netns
	case o.PID != 0 && !o.Held:
		return fmt.Sprintf("pid %d", o.PID)
	}
	return ""
}
