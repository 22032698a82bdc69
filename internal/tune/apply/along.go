package apply

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// companions is what an Applier is as well where writing one value makes the kernel set
// others.
type companions interface {
	// Along are those others that would not be as they are now if the target were set
	// to before again.
	Along(target, before string) (map[string]string, error)
}

// readAlong notes what the kernel is about to set along with the changes.
func readAlong(tx *journal.Transaction, opt Options) (err error) {
	for i := range tx.Changes {
		c := &tx.Changes[i]
		applier, ok := opt.Appliers[c.Kind].(companions)
		if !ok || tune.SameValue(c.Before, c.After) {
			continue
		}
		if c.Along, err = applier.Along(c.Target, c.Before); err != nil {
			return err
		}
	}
	return nil
}

// leaveChosen takes out those that somebody has set since the target was: they are not to
// be put back.
func leaveChosen(applier Applier, c *journal.Change) error {
	for name := range c.Along {
		now, err := applier.Read(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && !tune.SameValue(now, tune.SetAlong(name, c.After)) {
			delete(c.Along, name)
		}
	}
	return nil
}

// putBackAlong gives those the values that they had: each that is what the kernel made
// of it when the target was set back. Others have been changed by somebody since.
func putBackAlong(applier Applier, c *journal.Change) error {
	for _, name := range slices.Sorted(maps.Keys(c.Along)) {
		now, err := applier.Read(name)
		switch {
		case errors.Is(err, fs.ErrNotExist): // its interface is gone
			continue
		case err != nil:
			return err
		case tune.SameValue(now, c.Along[name]) || !tune.SameValue(now, tune.SetAlong(name, c.Before)):
			continue
		}
		if err := applier.Write(name, c.Along[name]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("undo what the kernel set along with %s: %w", c.Target, err)
		}
	}
	return nil
}

func (s sysctls) Along(target, before string) (map[string]string, error) {
	var along map[string]string
	root := filepath.Join(s.procRoot, "sys")
	for _, pattern := range tune.Along(target) {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			name, err := s.name(root, path)
			if err != nil { // an interface of a name that natkit does not write
				continue
			}
			value, err := s.Read(name)
			if errors.Is(err, fs.ErrNotExist) || err == nil && tune.SameValue(value, tune.SetAlong(name, before)) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if along == nil {
				along = map[string]string{}
			}
			along[name] = value
		}
	}
	return along, nil
}

// name is that of the sysctl at a path.
func (s sysctls) name(root, path string) (string, error) {
	rel, err := filepath.Rel(root, path)
	if err != nil {
		return "", err
	}
	return tune.SysctlName(filepath.ToSlash(rel))
}
