package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/natkit/natkit/tools/vm/plan"
)

// kernelFiles are those of an unpacked Debian kernel package.
type kernelFiles struct {
	dir     string
	release string
	image   string
}

// findKernel looks into a directory for one kernel with its modules.
func findKernel(dir string) (kernelFiles, error) {
	images, err := filepath.Glob(filepath.Join(dir, "boot/vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return kernelFiles{}, fmt.Errorf("find the kernel in %s: %d files boot/vmlinuz-*, wanted one (remove the directory to fetch it again)", dir, len(images))
	}
	release := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	return kernelFiles{dir: dir, release: release, image: images[0]}, nil
}

// addKernel adds the modules, what modprobe needs to find them, and the
// configuration, each where a distribution has it.
func (a archive) addKernel(k kernelFiles) error {
	within := "lib/modules/" + k.release
	host, vm := filepath.Join(k.dir, within), "/usr/"+within
	modules, err := readModules(host)
	if err != nil {
		return err
	}
	names := chooseModules(modules)
	for _, name := range names {
		file := modules[name].file
		a.add(filepath.Join(vm, file), entry{mode: regular | 0o644, from: filepath.Join(host, file)})
	}
	a.addText(filepath.Join(vm, "modules.dep"), dependencyFile(modules, names))
	a.addText(filepath.Join(vm, "modules.alias"), aliasFile(modules, names))
	config := "boot/config-" + k.release
	if _, err := os.Stat(filepath.Join(k.dir, config)); err != nil {
		return fmt.Errorf("add the kernel's configuration: %w", err)
	}
	a.add("/"+config, entry{mode: regular | 0o644, from: filepath.Join(k.dir, config)})
	return nil
}

// addSystem adds what a machine has before programs come: the directories that are
// one (as on Debian since 12), the console, process 1.
func (a archive) addSystem(initProgram string) error {
	info, err := os.Stat(initProgram)
	if err != nil {
		return err
	}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		a.add("/usr/"+dir, entry{mode: directory | 0o755})
		a.add("/"+dir, entry{mode: link | 0o777, text: "usr/" + dir})
	}
	for _, dir := range []string{"/proc", "/sys", "/dev", "/run", "/root", "/var/log", "/etc"} {
		a.add(dir, entry{mode: directory | 0o755})
	}
	for _, dir := range []string{"/tmp", "/var/tmp"} {
		a.add(dir, entry{mode: directory | 0o1777})
	}
	a.add("/dev/console", entry{mode: character | 0o600, major: 5, minor: 1})
	a.addFile(plan.Init, initProgram, info)
	for _, name := range []string{"/init", "/usr/sbin/modprobe"} {
		a.add(name, entry{mode: link | 0o777, text: plan.Init})
	}
	a.addText("/etc/hosts", "127.0.0.1 localhost natkit-vm\n::1 localhost\n")
	return nil
}

// addSources adds the checkout where it lies on the host, without what is hidden or
// built: tests read files beside them by relative paths.
func (a archive) addSources(root string) error {
	return a.addTree(root, func(dir string) bool {
		return dir == "bin" || strings.HasPrefix(filepath.Base(dir), ".")
	})
}

func (a archive) addPlan(p plan.Plan) error {
	text, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("write the plan: %w", err)
	}
	a.addText(plan.Path, string(text))
	return nil
}

// save writes the archive to a file and gives its size.
func (a archive) save(name string) (size int64, err error) {
	f, err := os.Create(name)
	if err != nil {
		return 0, err
	}
	out := bufio.NewWriter(f)
	if err = a.write(out); err == nil {
		err = out.Flush()
	}
	if info, statErr := f.Stat(); err == nil && statErr == nil {
		size = info.Size()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return size, err
}
