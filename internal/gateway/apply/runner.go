package apply

import (
	"fmt"
	"os"
	"path"
	"strings"
)

// Runner is a `natkit gateway run`, as it names itself in its claim.
type Runner struct {
	// Command is "natkit gateway run FILE".
	Command string
	PID     int
	// Unit is the systemd unit whose main process it is; empty where it was started otherwise.
	Unit string
}

// runnerHere is this process.
func runnerHere(file string) Runner {
	cgroup, _ := os.ReadFile("/proc/self/cgroup")
	return Runner{Command: "natkit gateway run " + file, PID: os.Getpid(), Unit: unitOf(string(cgroup), os.Getppid())}
}

// unitOf is the unit that a process is the main one of, by its /proc/PID/cgroup and its parent; empty where it is none's.
// What somebody starts in a session may be in the cgroup of a service as well, such as sshd's: its parent is a shell.
func unitOf(cgroup string, parent int) string {
	for line := range strings.Lines(cgroup) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		hierarchy, where, _ := strings.Cut(rest, ":")
		unit := path.Base(where)
		if parent == 1 && (hierarchy == "" || hierarchy == "name=systemd") && strings.HasSuffix(unit, ".service") {
			return unit
		}
	}
	return ""
}

// String is "'natkit gateway run FILE' (pid 7)", or "… (natkit-gateway.service, pid 7)".
func (r Runner) String() string {
	if r.Unit == "" {
		return fmt.Sprintf("'%s' (pid %d)", r.Command, r.PID)
	}
	return fmt.Sprintf("'%s' (%s, pid %d)", r.Command, r.Unit, r.PID)
}

// parseRunner reads what String writes; of another text Command alone.
func parseRunner(text string) Runner {
	at := strings.LastIndex(text, "' (")
	if at < 1 {
		return Runner{Command: text}
	}
	r, inside := Runner{Command: text[1:at]}, text[at+len("' ("):]
	if unit, rest, is := strings.Cut(inside, ", "); is {
		r.Unit, inside = unit, rest
	}
	if n, err := fmt.Sscanf(inside, "pid %d)", &r.PID); n != 1 || err != nil || r.String() != text {
		return Runner{Command: text}
	}
	return r
}

// Reload is the command that has it read its file again, in quotes.
func (r Runner) Reload() string {
	return r.command("'systemctl reload %s'", "'kill -HUP %d'", "a reload")
}

// Stop is the command that ends it, in quotes.
func (r Runner) Stop() string { return r.command("'systemctl stop %s'", "'kill %d'", "a SIGTERM") }

func (r Runner) command(ofUnit, ofProcess, otherwise string) string {
	switch {
	case r.Unit != "":
		return fmt.Sprintf(ofUnit, r.Unit)
	case r.PID != 0:
		return fmt.Sprintf(ofProcess, r.PID)
	}
	return otherwise
}
