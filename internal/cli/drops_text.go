package cli

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	bpf "github.com/natkit/natkit/internal/bpf/drops"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
)

// dropsDocument is the JSON form.
type dropsDocument struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
	// Notes are what could not be done here.
	Notes []string        `json:"notes,omitempty"`
	Drops *snapshot.Drops `json:"drops"`
}

// eventDocument is one line of JSON.
type eventDocument struct {
	Schema string `json:"schema"`
	bpf.Event
}

// summary is what comes last. With events as lines of JSON it is one of them.
func (d *dropsVerb) summary(drops *snapshot.Drops, notes []string) error {
	if d.asCSV {
		if drops.Lost > 0 {
			d.env.note("%d drops found no place in natkit's tables: they are in no line", drops.Lost)
		}
		return report.CSV(d.env.Stdout, drops.Sites)
	}
	if !d.asJSON {
		d.names.refresh()
		return report.Drops(d.env.Stdout, d.env.style(), d.view(), drops)
	}
	doc := dropsDocument{Schema: dropsSchema, Version: d.env.Version, Notes: notes, Drops: drops}
	if d.events {
		return report.JSONLine(d.env.Stdout, doc)
	}
	return report.JSON(d.env.Stdout, doc)
}

// event shows one drop; what cannot be written, and enough, end the run.
func (d *dropsVerb) event(e bpf.Event, limit int, stop context.CancelCauseFunc) {
	if limit > 0 && d.shown >= limit {
		return
	}
	d.shown++
	var err error
	if d.asJSON {
		err = report.JSONLine(d.env.Stdout, eventDocument{dropEventSchema, e})
	} else {
		err = report.DropEvent(d.env.Stdout, d.view(), e)
	}
	switch {
	case err != nil:
		stop(err)
	case d.shown == limit:
		stop(context.Canceled)
	}
}

// namespaceNames names network namespaces; it may be used by several goroutines.
type namespaceNames struct {
	numeric bool // there are no names
	mu      sync.Mutex
	names   map[uint64]string
	read    time.Time
}

// ownNamespace is the name of the namespace that natkit runs in, where nobody gave it one.
const ownNamespace = "this one"

// namesAge is how long a list of namespaces is good: listing costs milliseconds.
const namesAge = time.Second

// refresh lists them again, unless it was done just now.
func (n *namespaceNames) refresh() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list()
}

func (n *namespaceNames) list() {
	if time.Since(n.read) < namesAge {
		return
	}
	n.read = time.Now()
	handles, err := netns.All()
	if err != nil {
		return
	}
	defer netns.CloseAll(handles)
	n.names = map[uint64]string{}
	for _, h := range handles {
		n.names[h.Inode()] = h.Name()
	}
	// The names that people gave are better than numbers of processes.
	for _, name := range netns.Names() {
		if h, err := netns.Named(name); err == nil {
			n.names[h.Inode()] = name
			h.Close()
		}
	}
	if own, err := netns.Current(); err == nil {
		if name := n.names[own.Inode()]; name == "" || strings.HasPrefix(name, "pid ") {
			n.names[own.Inode()] = ownNamespace
		}
		own.Close()
	}
}

// flags choose the namespace on a command line; known is false where no flag can.
func (n *namespaceNames) flags(inode uint64) (flags string, known bool) {
	name := n.name(inode)
	if pid, ok := strings.CutPrefix(name, "pid "); ok {
		return " --pid " + pid, true
	}
	if name == ownNamespace {
		return "", true
	}
	return " --netns " + name, slices.Contains(netns.Names(), name)
}

// name is empty for a namespace that has none. The kernel gives the lowest free number
// to a new namespace: what a number meant a while ago says nothing.
func (n *namespaceNames) name(inode uint64) string {
	if n.numeric {
		return ""
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list()
	return n.names[inode]
}
