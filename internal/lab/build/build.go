// Package build makes labs real: network namespaces, links, servers, NAT rules
// and full connection tables. All of it disappears with the process that built
// it, however that ends: namespaces and links are held by its file descriptors
// only, and processes run in a PID namespace that ends with it. Only the eBPF programs of a
// gateway, which are pinned, stay in memory where it is killed, until engine.Set.Sweep.
package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"golang.org/x/sys/unix"
)

// DefaultDir is where labs keep their lock, their state files and the empty
// directory on which each mounts its own file system.
const DefaultDir = "/run/natkit"

// Options of Up. The zero value is fit for use.
type Options struct {
	// Dir replaces DefaultDir.
	Dir string
	// Log gets each step, in one line.
	Log func(line string)
}

func dirOr(dir string) string {
	if dir == "" {
		return DefaultDir
	}
	return dir
}

// Lab is a topology that stands.
type Lab struct {
	scenario *lab.Scenario
	nodes    []*Node
	box      *sandbox
	// init is nil where the lab belongs to another process (Attach).
	init *initProcess

	mu        sync.Mutex
	processes []*Process
	filled    filled
	carriers  []gateway.Carrier
	// gateway is the node that SetGateway has put a file in force in.
	gateway string
	// engines carry it out; nil stands for those of this version.
	engines engine.Set
	// redirects are the programs of SetRedirect.
	redirects []*pktgen.Attached
	// listeners are those of SetListeners.
	listeners []*os.File
	// before are the values that SetSysctls changed, as they were.
	before []nodeSysctl
}

// Node is one network namespace of a lab.
type Node struct {
	Name  string
	Netns *netns.Handle
	links *netns.Links
}

// CheckPrivilege returns an error that names what is missing to build labs.
func CheckPrivilege() error {
	return netns.CheckPrivilege(
		netns.Need{Any: netns.SysAdmin, Why: "to make and enter network namespaces"},
		netns.Need{Any: netns.NetAdmin, Why: "to make links, addresses and rules"})
}

// Up builds the scenario's topology. After an error nothing is left of it. Needs
// CAP_SYS_ADMIN and CAP_NET_ADMIN.
func Up(ctx context.Context, s *lab.Scenario, o Options) (*Lab, error) {
	if err := permit.Change("build a lab"); err != nil {
		return nil, err
	}
	l := &Lab{scenario: s}
	if err := l.up(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("build lab %s: %w", s.Name, err), l.Close())
	}
	return l, nil
}

func (l *Lab) up(ctx context.Context, o Options) error {
	if err := CheckPrivilege(); err != nil {
		return err
	}
	mount := filepath.Join(dirOr(o.Dir), "lab")
	if err := os.MkdirAll(mount, 0o755); err != nil {
		return fmt.Errorf("make the lab's mount point: %w", err)
	}
	var err error
	if l.init, err = startInit(ctx, mount); err != nil {
		return err
	}
	if l.box, err = openSandbox(l.init.pid, mount); err != nil {
		return err
	}
	for _, step := range l.scenario.Plan() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if o.Log != nil {
			o.Log(step.String())
		}
		if err := l.apply(step); err != nil {
			return fmt.Errorf("%s: %w", step, err)
		}
	}
	return nil
}

// Close ends the lab's processes and removes everything. After Attach it only
// lets go of the lab.
func (l *Lab) Close() error {
	var errs []error
	if l.init != nil {
		errs = append(errs, l.init.stop())
		l.mu.Lock()
		for _, p := range l.processes {
			<-p.done
		}
		l.mu.Unlock()
	}
	if l.box != nil {
		errs = append(errs, l.box.close())
	}
	errs = append(errs, l.SetListeners(nil), l.SetRedirect(nil))
	if l.init != nil {
		errs = append(errs, l.SetGateway(context.Background(), nil)) // what is pinned would stay
	}
	for _, n := range l.nodes {
		if n.links != nil {
			n.links.Close()
		}
		errs = append(errs, n.Netns.Close())
	}
	l.nodes = nil
	return errors.Join(errs...)
}

// Done is closed when the lab has ended without Close, such as when its first process
// was killed.
func (l *Lab) Done() <-chan struct{} { return l.init.done }

// Node is nil where there is no node of that name.
func (l *Lab) Node(name string) *Node {
	for _, n := range l.nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// FindNode is Node with an error that lists the existing nodes.
func (l *Lab) FindNode(name string) (*Node, error) {
	if n := l.Node(name); n != nil {
		return n, nil
	}
	names := make([]string, len(l.nodes))
	for i, n := range l.nodes {
		names[i] = n.Name
	}
	return nil, fmt.Errorf("unknown node %q%s; expected one of: %s", name, document.Hint(name, names), strings.Join(names, ", "))
}

// Nodes are in the order of the scenario.
func (l *Lab) Nodes() []*Node { return l.nodes }

// Scenario returns the scenario that the lab was built from.
func (l *Lab) Scenario() *lab.Scenario { return l.scenario }

// openNode makes the namespace and a netlink socket in it.
func (l *Lab) openNode(name string) error {
	ns, err := netns.New(name)
	if err != nil {
		return err
	}
	n := &Node{Name: name, Netns: ns}
	l.nodes = append(l.nodes, n)
	if n.links, err = ns.Links(); err != nil {
		return err
	}
	return n.links.SetUp("lo")
}

// Lock makes sure that only one lab at a time runs a scenario, since they share
// the host's nf_conntrack_max. dir is Options.Dir ("" for DefaultDir). The lock
// ends with Close or with the process.
func Lock(dir string) (io.Closer, error) {
	if err := permit.Change("build a lab"); err != nil {
		return nil, err
	}
	dir = dirOr(dir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("lock the lab: %w", err)
	}
	f, err := disk.TryLock(filepath.Join(dir, "lab.lock"))
	if errors.Is(err, unix.EWOULDBLOCK) {
		defer f.Close()
		holder, _ := io.ReadAll(io.LimitReader(f, 20))
		return nil, fmt.Errorf("another lab is running (pid %s); wait for its end", strings.TrimSpace(string(holder)))
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the lab: %w", err)
	}
	return f, nil
}

// Furnish sets up the nodes for a stage, apart from its fill.
func (l *Lab) Furnish(ctx context.Context, st *lab.Stage) error {
	if err := l.SetSysctls(st.Sysctls); err != nil {
		return err
	}
	if err := l.SetListeners(st.Listeners); err != nil {
		return err
	}
	if err := l.SetNAT(ctx, st.NAT); err != nil {
		return err
	}
	// An interface has one XDP program: that of the stage before has to go first.
	if err := l.SetRedirect(nil); err != nil {
		return err
	}
	if err := l.SetGateway(ctx, st.Gateway); err != nil {
		return err
	}
	return l.SetRedirect(st.Redirect)
}

// nodeSysctl is a value of a node.
type nodeSysctl struct {
	node *Node
	lab.Sysctl
}

// SetSysctls sets values in nodes, by node and name. Those that an earlier call has
// set get the values again that they had before it.
func (l *Lab) SetSysctls(values map[string]map[string]string) error {
	var errs []error
	for _, old := range slices.Backward(l.before) {
		errs = append(errs, old.node.setSysctl(old.Sysctl))
	}
	l.before = nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("put values of nodes back: %w", err)
	}
	for _, node := range slices.Sorted(maps.Keys(values)) {
		for _, name := range slices.Sorted(maps.Keys(values[node])) {
			n := l.Node(node)
			old, err := netns.Sysctl(n.Netns, name)
			if err == nil {
				l.before = append(l.before, nodeSysctl{n, lab.Sysctl{Key: name, Value: old}})
				err = n.setSysctl(lab.Sysctl{Key: name, Value: values[node][name]})
			}
			if err != nil {
				return fmt.Errorf("set %s in %s: %w", name, node, err)
			}
		}
	}
	return nil
}
