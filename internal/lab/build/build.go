// Package build makes labs real: network namespaces, links, servers, NAT rules
// and full connection tables. All of it disappears with the process that built
// it, however that ends: namespaces and links are held by its file descriptors
// only, and processes run in a PID namespace that ends with it.
package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/privilege"
	"github.com/natkit/natkit/internal/suggest"
)

// DefaultDir is where labs keep their lock, their state files and the empty
// directory on which each mounts its own file system.
const DefaultDir = "/run/natkit"

// Options of Up. The zero value is fit for use.
type Options struct {
	// Dir replaces DefaultDir.
	Dir string
	// Log is told each step, in one line.
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
	// gateway is the node that SetGateway has put a file in force in.
	gateway string
	// engines carry it out; nil stands for those of this version.
	engines engine.Set
	// before are the values that SetSysctls changed, as they were.
	before []lab.SetSysctl
}

// Node is one network namespace of a lab.
type Node struct {
	Name  string
	Netns *netns.Handle
	links *netlink.Handle
}

// CheckPrivilege says what is missing to build labs.
func CheckPrivilege() error {
	return privilege.Check(
		privilege.Need{Any: privilege.SysAdmin, Why: "to make and enter network namespaces"},
		privilege.Need{Any: privilege.NetAdmin, Why: "to make links, addresses and rules"})
}

// Up builds the scenario's topology. After an error nothing is left of it. Needs
// CAP_SYS_ADMIN and CAP_NET_ADMIN.
func Up(ctx context.Context, s *lab.Scenario, o Options) (*Lab, error) {
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
	for _, n := range l.nodes {
		if n.links != nil {
			n.links.Close()
		}
		errs = append(errs, n.Netns.Close())
	}
	l.nodes = nil
	return errors.Join(errs...)
}

// Done is closed when the lab has ended by itself, for instance because its
// first process was killed.
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

// FindNode is Node with an error that says which nodes there are.
func (l *Lab) FindNode(name string) (*Node, error) {
	if n := l.Node(name); n != nil {
		return n, nil
	}
	names := make([]string, len(l.nodes))
	for i, n := range l.nodes {
		names[i] = n.Name
	}
	return nil, fmt.Errorf("unknown node %q%s; expected one of: %s", name, suggest.Hint(name, names), strings.Join(names, ", "))
}

// Nodes are in the order of the scenario.
func (l *Lab) Nodes() []*Node { return l.nodes }

// Scenario is what the lab was built from.
func (l *Lab) Scenario() *lab.Scenario { return l.scenario }

// openNode makes the namespace and a netlink socket in it. The socket is made
// on a thread of its own: netlink.NewHandleAt would hand a thread that it failed
// to move back to Go's pool.
func (l *Lab) openNode(name string) error {
	ns, err := netns.New(name)
	if err != nil {
		return err
	}
	n := &Node{Name: name, Netns: ns}
	l.nodes = append(l.nodes, n)
	return ns.Do(func() error {
		if n.links, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return err
		}
		return n.setUp("lo")
	})
}
