package netns

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// CommandIn quotes a command for a shell so that it runs in ns, or in the calling thread's
// where that is nil; as it is where that is the one natkit was started in. Where no name
// and no process leads there, it says where.
func CommandIn(ns *Handle, command string) string {
	if ns == nil {
		var err error
		if ns, err = ofThread(""); err != nil {
			return "'" + command + "'"
		}
		defer ns.Close()
	}
	if here, err := Current(); err == nil {
		defer here.Close()
		if here.inode == ns.inode {
			return "'" + command + "'"
		}
	}
	if way := ns.way(); way != "" {
		return "'" + way + " " + command + "'"
	}
	return fmt.Sprintf("'%s' in network namespace %d", command, ns.inode)
}

// plain is what no shell reads otherwise.
var plain = regexp.MustCompile(`^[\w./:@%+-]+$`)

// way is the command that enters the namespace from where natkit was started: by its name
// if it has one, or else by a process in it or a mount. What a process holds by a
// descriptor may be closed at any time.
func (h *Handle) way() string {
	for _, name := range Names() {
		named, err := Named(name)
		if err != nil {
			continue
		}
		named.Close()
		if named.inode == h.inode && plain.MatchString(name) {
			return "ip netns exec " + name
		}
	}
	self := fmt.Sprintf("/proc/%d/", os.Getpid())
	for p := range new(search).places() {
		process, in := strings.CutSuffix(p.path, "/ns/net")
		switch {
		case p.inode != h.inode || strings.HasPrefix(p.path, self) || !plain.MatchString(p.path):
		case in:
			return "nsenter -t " + filepath.Base(process) + " -n"
		case strings.Contains(p.path, "/root/"):
			return "nsenter --net=" + p.path
		}
	}
	return ""
}
