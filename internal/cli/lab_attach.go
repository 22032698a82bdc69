package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/suggest"
)

// attachedLab is a lab that another natkit keeps up. Close lets go of it.
type attachedLab struct {
	*build.Lab
	name string
}

// attachLab enters the lab of that name, or the only one.
func attachLab(env *Env, name string) (*attachedLab, error) {
	dir := env.Getenv(runDirEnv)
	state, err := chooseLab(dir, name)
	if err != nil {
		return nil, err
	}
	l, err := build.Attach(dir, state)
	if err != nil {
		return nil, err
	}
	return &attachedLab{l, state.Name}, nil
}

// node is the node of that name.
func (l *attachedLab) node(name string) (*build.Node, error) {
	n, err := l.FindNode(name)
	if err != nil {
		return nil, usagef("lab %s: %w", l.name, err)
	}
	return n, nil
}

// chooseLab is the lab of that name, or the only one.
func chooseLab(dir, name string) (build.State, error) {
	up, damaged := build.States(dir)
	names := make([]string, len(up))
	for i, s := range up {
		names[i] = s.Name
		if s.Name == name {
			return s, nil
		}
	}
	switch {
	case len(up) == 0 && damaged != nil:
		return build.State{}, damaged
	case len(up) == 0:
		return build.State{}, errors.New("no lab is up; 'natkit lab up NAME' builds one")
	case name != "":
		return build.State{}, fmt.Errorf("lab %q is not up%s; up are: %s", name, suggest.Hint(name, names), strings.Join(names, ", "))
	case len(up) > 1:
		return build.State{}, usagef("several labs are up (%s): choose one by name", strings.Join(names, ", "))
	}
	return up[0], nil
}
