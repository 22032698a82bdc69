package edit

import "github.com/natkit/natkit/internal/nat"

// Applier reads and writes ports and options of NAT rules for package tune/apply, each in
// the network namespace that its target names. A reboot resets them, as it does all rules.
type Applier struct{}

// Read returns a rule's ports and options as nat.Options writes them.
func (Applier) Read(target string) (string, error) {
	o, err := Options(target)
	return o.String(), err
}

// Writable is Changeable.
func (Applier) Writable(target string) error { return Changeable(target) }

// Write gives a rule other ports and options.
func (Applier) Write(target, value string) error {
	o, err := nat.ParseOptions(value)
	if err != nil {
		return err
	}
	return Change(target, o)
}

// Honours: the kernel changes nothing about them.
func (Applier) Honours(_, asked, got string) bool { return asked == got }

// Durable is false.
func (Applier) Durable() bool { return false }
