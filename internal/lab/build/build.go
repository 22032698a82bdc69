// Package build makes labs real: network namespaces, links, servers, NAT rules
// and full connection tables. All of it disappears with the process that built
// it, however that ends.
package build

import (
	"context"
	"errors"
	"io"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/netns"
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

// Lab is a topology that stands.
type Lab struct{}

// Node is one network namespace of a lab.
type Node struct {
	Name  string
	Netns *netns.Handle
}

// ServerKind chooses the web server.
type ServerKind string

const (
	// Auto is Nginx where it is installed, otherwise Builtin.
	Auto ServerKind = "auto"
	// Nginx is the real one, from PATH or /usr/sbin.
	Nginx ServerKind = "nginx"
	// Builtin is `natkit bench serve`.
	Builtin ServerKind = "builtin"
)

// Command is a program to start in a node.
type Command struct {
	Path string
	// Args do not contain the program's name.
	Args []string
	// Env is nil for the environment of this process.
	Env            []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Process is a program that runs in a lab.
type Process struct{}

// Server is a web server that accepts connections.
type Server struct {
	// Name is "nginx/1.22.1" or "natkit builtin".
	Name string
	*Process
}

var errNotYet = errors.New("not built yet")

// IsInit tells whether this process was started as a part of a lab; main must
// then call InitMain, and nothing else, and exit with what it returns.
func IsInit() bool { return false }

// InitMain is the main function of such a process.
func InitMain() int { return 1 }

// Lock makes sure that only one lab at a time runs a scenario, since they share
// the host's nf_conntrack_max. dir is Options.Dir ("" for DefaultDir).
func Lock(dir string) (io.Closer, error) { return nil, errNotYet }

// Up builds the scenario's topology. After an error nothing is left of it. Needs
// CAP_SYS_ADMIN and CAP_NET_ADMIN.
func Up(ctx context.Context, s *lab.Scenario, o Options) (*Lab, error) { return nil, errNotYet }

// Close ends the lab's processes and removes everything.
func (l *Lab) Close() error { return nil }

// Node is nil where there is no node of that name.
func (l *Lab) Node(name string) *Node { return nil }

// Nodes are in the order of the scenario.
func (l *Lab) Nodes() []*Node { return nil }

// Start runs a program in a node, in the lab's own PID and mount namespaces.
// ctx bounds the starting, not the program.
func (l *Lab) Start(ctx context.Context, node string, c Command) (*Process, error) {
	return nil, errNotYet
}

// Wait returns when the program has ended. Its error names the exit code and the
// last line that the program wrote to its standard error.
func (p *Process) Wait() error { return errNotYet }

// Kill ends the program at once and waits for its end.
func (p *Process) Kill() error { return errNotYet }

// StartServer starts the scenario's web server and waits until it accepts
// connections.
func (l *Lab) StartServer(ctx context.Context, kind ServerKind) (*Server, error) {
	return nil, errNotYet
}

// SetNAT replaces the NAT rules of all nodes by these. Without a rule a node's
// connection tracking is off.
func (l *Lab) SetNAT(ctx context.Context, rules []lab.NAT) error { return errNotYet }

// ClearLoad removes the entries that the load left in the nodes' connection
// tables, and leaves those of a fill.
func (l *Lab) ClearLoad(ctx context.Context) error { return errNotYet }

// SetFill brings the connection table of f.Node to so many entries in all (see
// lab.FillTarget), by entries that the kernel does not evict. It keeps those that
// are there already. A nil f removes all that were made.
func (l *Lab) SetFill(ctx context.Context, f *lab.Fill, entries int64) error { return errNotYet }
