// Package plan is the protocol between the conductor of a test VM and the VM's first
// process: one Plan goes in with the initramfs, Events come out over the second serial
// port, one JSON document per line. The first port is the kernel's console.
package plan

// Where things lie in the VM.
const (
	// Path of the Plan.
	Path = "/vm/plan.json"
	// Port carries the events.
	Port = "/dev/ttyS1"
	// Init is the program that is both process 1 and modprobe(8).
	Init = "/vm/init"
)

// Plan is all that the VM does before it powers off.
type Plan struct {
	// Modules are loaded first; the kernel asks for all others when they are used.
	Modules []string
	// Sysctls are written in turn, after the modules are loaded.
	Sysctls []Sysctl
	Jobs    []Job
}

// Sysctl is a file below /proc/sys and what is written to it.
type Sysctl struct{ Name, Value string }

// Job is one program that runs to its end before the next one starts.
type Job struct {
	// Name is for people.
	Name string
	Dir  string
	Argv []string
	Env  []string
}

// Kind is the kind of an event.
type Kind string

const (
	Ready   Kind = "ready"   // the VM is set up; Text is the kernel's release
	Started Kind = "started" // a job starts
	Output  Kind = "output"  // Text is what a job wrote, standard error included
	Ended   Kind = "ended"   // a job ended with Code
	Trouble Kind = "trouble" // the VM could not carry out the plan; Text is the reason
	Done    Kind = "done"    // nothing comes after this
)

// Event is one line of the VM's output.
type Event struct {
	Kind Kind
	Job  int    `json:",omitempty"` // index in Plan.Jobs
	Text []byte `json:",omitempty"`
	Code int    `json:",omitempty"` // as in a shell: 128 + the signal's number
	// Uptime is the number of seconds since the kernel started, by its own clock.
	Uptime float64
}
