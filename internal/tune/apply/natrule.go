package apply

import (
	"github.com/natkit/natkit/internal/natrules"
	"github.com/natkit/natkit/internal/tune"
)

// natRules applies ports and options of NAT rules, each in the network namespace
// that its Target names. They go with a reboot, as all rules do.
type natRules struct{}

func (natRules) Read(target string) (string, error) {
	o, err := natrules.Options(target)
	return o.String(), err
}

func (natRules) Writable(target string) error { return natrules.Changeable(target) }

func (natRules) Write(target, value string) error {
	o, err := tune.ParseNATOptions(value)
	if err != nil {
		return err
	}
	return natrules.Change(target, o)
}

// Honours: the kernel changes nothing about them.
func (natRules) Honours(_, asked, got string) bool { return asked == got }

func (natRules) Durable() bool { return false }
