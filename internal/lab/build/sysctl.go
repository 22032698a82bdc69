package build

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/lab"
)

// SetSysctls sets values in nodes, by node and name. Those that an earlier call has
// set get the values again that they had before it.
func (l *Lab) SetSysctls(values map[string]map[string]string) error {
	var errs []error
	for _, old := range slices.Backward(l.before) {
		errs = append(errs, l.Node(old.Node).setSysctl(old))
	}
	l.before = nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("put values of nodes back: %w", err)
	}
	for _, node := range slices.Sorted(maps.Keys(values)) {
		for _, name := range slices.Sorted(maps.Keys(values[node])) {
			if err := l.change(lab.SetSysctl{Node: node, Name: name, Value: values[node][name]}); err != nil {
				return fmt.Errorf("set %s in %s: %w", name, node, err)
			}
		}
	}
	return nil
}

// change sets a value and remembers what it was.
func (l *Lab) change(s lab.SetSysctl) error {
	n := l.Node(s.Node)
	var text []byte
	err := n.Netns.Do(func() (err error) {
		text, err = os.ReadFile(sysctlPath(s.Name))
		return err
	})
	if err != nil {
		return err
	}
	l.before = append(l.before, lab.SetSysctl{Node: s.Node, Name: s.Name, Value: strings.TrimSpace(string(text))})
	return n.setSysctl(s)
}
