package diagnose

import (
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// deleteCommand is the command line that deletes entries of the namespace that was
// looked at; it works as it is printed.
func deleteCommand(rec *snapshot.Recording, filter string) string {
	return "natkit conntrack delete " + inNamespace(rec.Last().Netns.Name) + filter
}

// inNamespace is the flag that leads to a namespace by the name that natkit gave it:
// that of ip-netns(8), or "pid 77"; others (a lab's) have no flag.
func inNamespace(name string) string {
	if pid, ok := strings.CutPrefix(name, "pid "); ok {
		return "--pid " + pid + " "
	}
	if name == "" || name[0] == '-' || strings.ContainsAny(name, " /'\"\\$`;&|<>()*?[]#~\n") {
		return ""
	}
	return "--netns " + name + " "
}

// where names the namespace that a command line belongs into; empty for the one that
// natkit runs in.
func where(rec *snapshot.Recording) string {
	if name := rec.Last().Netns.Name; name != "" {
		return " (in the network namespace " + name + ")"
	}
	return ""
}
