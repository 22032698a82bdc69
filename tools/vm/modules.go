package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// moduleDirs are the parts of a kernel package that tests of a network program may
// need; what they depend on comes with them. Drivers of cards would be most of it.
var moduleDirs = []string{"kernel/net/", "kernel/lib/", "kernel/crypto/", "kernel/arch/", "kernel/drivers/net/", "kernel/fs/overlayfs/"}

var notModuleDirs = []string{
	"kernel/drivers/net/ethernet/", "kernel/drivers/net/hyperv/", "kernel/drivers/net/vmxnet3/", "kernel/drivers/net/wireless/",
	"kernel/drivers/net/wwan/", "kernel/drivers/net/xen-netback/", "kernel/net/bluetooth/", "kernel/net/sunrpc/", "kernel/net/ceph/",
	"kernel/net/smc/", "kernel/net/tipc/", "kernel/net/rds/", "kernel/net/sctp/", "kernel/net/9p/", "kernel/net/dccp/",
}

// module is a module file's description, from its section .modinfo.
type module struct {
	file    string // relative to /lib/modules/RELEASE
	name    string
	aliases []string
	needs   []string // names of modules; with those of "softdep: pre"
}

// readModules reads all modules below dir, /lib/modules/RELEASE of a kernel package.
func readModules(dir string) (map[string]module, error) {
	found := map[string]module{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".ko") {
			return err
		}
		m, err := readModule(dir, name)
		if err == nil {
			found[m.name] = m
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the kernel modules in %s: %w", dir, err)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("read the kernel modules in %s: there are none", dir)
	}
	return found, nil
}

func readModule(dir, name string) (module, error) {
	m := module{file: name, name: moduleName(strings.TrimSuffix(path.Base(name), ".ko"))}
	file, err := elf.Open(filepath.Join(dir, name))
	if err != nil {
		return m, fmt.Errorf("%s: %w", name, err)
	}
	defer file.Close()
	section := file.Section(".modinfo")
	if section == nil {
		return m, fmt.Errorf("%s: no section .modinfo: not a kernel module", name)
	}
	info, err := section.Data()
	if err != nil {
		return m, fmt.Errorf("%s: %w", name, err)
	}
	m.parse(info)
	return m, nil
}

// moduleName: the kernel and its tools treat - and _ as one.
func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// parse reads "key=value" texts that end in a zero byte (include/linux/module.h).
func (m *module) parse(info []byte) {
	for text := range bytes.SplitSeq(info, []byte{0}) {
		key, value, _ := strings.Cut(string(text), "=")
		switch key {
		case "alias":
			m.aliases = append(m.aliases, value)
		case "depends":
			for name := range strings.SplitSeq(value, ",") {
				m.need(name)
			}
		case "softdep":
			before, _, _ := strings.Cut(value, "post:")
			for name := range strings.FieldsSeq(strings.TrimPrefix(before, "pre:")) {
				m.need(name)
			}
		}
	}
}

func (m *module) need(name string) {
	if name != "" {
		m.needs = append(m.needs, moduleName(name))
	}
}

// chooseModules gives the names of the modules in moduleDirs and of what they need.
func chooseModules(all map[string]module) []string {
	chosen := map[string]bool{}
	var choose func(name string)
	choose = func(name string) {
		m, known := all[name]
		// A soft dependency may be built into the kernel.
		if !known || chosen[name] {
			return
		}
		chosen[name] = true
		for _, n := range m.needs {
			choose(n)
		}
	}
	for name, m := range all {
		if hasAnyPrefix(m.file, moduleDirs) && !hasAnyPrefix(m.file, notModuleDirs) {
			choose(name)
		}
	}
	names := make([]string, 0, len(chosen))
	for name := range chosen {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func hasAnyPrefix(s string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

// dependencyFile is modules.dep(5): each line names a module and then all that must
// be loaded before it, the first to load last.
func dependencyFile(all map[string]module, names []string) string {
	var text strings.Builder
	for _, name := range names {
		fmt.Fprintf(&text, "%s:", all[name].file)
		for _, n := range slices.Backward(loadOrder(all, name)) {
			fmt.Fprintf(&text, " %s", all[n].file)
		}
		text.WriteByte('\n')
	}
	return text.String()
}

// loadOrder gives what name needs, each after what it needs itself.
func loadOrder(all map[string]module, name string) []string {
	var order []string
	seen := map[string]bool{name: true}
	var visit func(name string)
	visit = func(name string) {
		for _, n := range all[name].needs {
			if _, known := all[n]; known && !seen[n] {
				seen[n] = true
				visit(n)
				order = append(order, n)
			}
		}
	}
	visit(name)
	return order
}

// aliasFile has the format of modules.alias, which depmod(8) writes.
func aliasFile(all map[string]module, names []string) string {
	var text strings.Builder
	for _, name := range names {
		for _, alias := range all[name].aliases {
			fmt.Fprintf(&text, "alias %s %s\n", alias, name)
		}
	}
	return text.String()
}
