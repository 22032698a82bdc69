package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// modprobe loads the module or alias that args name last, and answers with an exit
// code. Flags, such as the kernel's "-q --", change nothing here.
func modprobe(args []string) int {
	var name string
	for _, a := range args {
		if !strings.HasPrefix(a, "-") {
			name = a
			break
		}
	}
	if err := load(name); err != nil {
		if len(args) == 0 || args[0] != "-q" {
			fmt.Fprintf(os.Stderr, "modprobe: %v\n", err)
		}
		return 1
	}
	return 0
}

// load loads a module, or those that an alias stands for, with what they need.
func load(name string) error {
	dir, err := modulesDir()
	if err != nil {
		return err
	}
	wanted, err := modulesOf(dir, canonical(name))
	if err != nil {
		return err
	}
	var failed error
	for _, line := range wanted {
		failed = errors.Join(failed, insertAll(dir, line))
	}
	return failed
}

// insertAll loads the modules of a line of modules.dep(5). A module comes before
// those that it needs there.
func insertAll(dir string, line []string) error {
	for _, file := range slices.Backward(line) {
		if err := insert(filepath.Join(dir, file)); err != nil {
			return err
		}
	}
	return nil
}

func modulesDir() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", fmt.Errorf("read the kernel's release: %w", err)
	}
	return "/lib/modules/" + unix.ByteSliceToString(u.Release[:]), nil
}

// canonical: the kernel and its tools treat - and _ as one.
func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }

// modulesOf finds the lines of modules.dep(5) for a module's name, or else for the
// modules that have it as an alias.
func modulesOf(dir, name string) ([][]string, error) {
	names := map[string]bool{name: true}
	lines, err := dependencies(dir, names)
	if err != nil || len(lines) > 0 {
		return lines, err
	}
	clear(names)
	err = eachLine(filepath.Join(dir, "modules.alias"), func(fields []string) {
		if len(fields) != 3 || fields[0] != "alias" {
			return
		}
		if ok, err := path.Match(canonical(fields[1]), name); ok && err == nil {
			names[fields[2]] = true
		}
	})
	if err != nil {
		return nil, err
	}
	lines, err = dependencies(dir, names)
	if err == nil && len(lines) == 0 {
		err = fmt.Errorf("load module %s: not among the modules in %s", name, dir)
	}
	return lines, err
}

func dependencies(dir string, names map[string]bool) ([][]string, error) {
	var found [][]string
	err := eachLine(filepath.Join(dir, "modules.dep"), func(fields []string) {
		file := strings.TrimSuffix(fields[0], ":")
		if names[canonical(strings.TrimSuffix(filepath.Base(file), ".ko"))] {
			found = append(found, append([]string{file}, fields[1:]...))
		}
	})
	return found, err
}

func eachLine(name string, do func(fields []string)) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("load a module: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 0 {
			do(fields)
		}
	}
	return lines.Err()
}

// insert loads a module, unless it is. The kernel asks for the same ones again and again
// (nf_tables_module_autoload asks for all of a transaction's each time that one is missing).
func insert(file string) error {
	if live(file) {
		return nil
	}
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("load a module: %w", err)
	}
	defer f.Close()
	// Waiting for another process that loads the same module is interrupted by signals
	// since Linux 6.11 (idempotent_wait_for_completion), those of Go's scheduler too.
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.FinitModule(int(f.Fd()), "", 0)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load module %s: %w", file, err)
	}
	return nil
}

// live reports whether the module of a file is loaded, and ready.
func live(file string) bool {
	name := canonical(strings.TrimSuffix(filepath.Base(file), ".ko"))
	state, err := os.ReadFile("/sys/module/" + name + "/initstate")
	return err == nil && strings.TrimSpace(string(state)) == "live"
}
