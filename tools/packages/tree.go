package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// File is one file of a package.
type File struct {
	// Path is absolute, as in a package.
	Path string
	Mode fs.FileMode
	Text []byte
	// Config is true for one that an administrator changes: an upgrade keeps it.
	Config bool
	// Link is what a symbolic link leads to, empty for a plain file.
	Link string
}

// licencesPath is where the licences of what is linked into natkit are.
const licencesPath = "/usr/share/doc/natkit/licences.txt"

// tree returns the files of natkit for an architecture, sorted by their paths.
func tree(root string, s Source, p Program) ([]File, error) {
	t := &grower{root: root}
	t.add("/usr/bin/natkit", 0o755, p.Binary)
	t.program("deploy/natkit-fleet", "/usr/bin/natkit-fleet")
	t.files = append(t.files, File{Path: "/usr/bin/kubectl-natkit", Mode: 0o777, Link: "natkit-fleet"})
	t.deploy()
	t.copy("deploy/packages/natkit.default", "/etc/default/natkit")
	for _, name := range []string{"README.md", "README.zh.md", "CHANGELOG.md", "SECURITY.md", "LICENSE"} {
		t.copy(name, "/usr/share/doc/natkit/"+name)
	}
	t.copy("deploy/packages/copyright", "/usr/share/doc/natkit/copyright")
	t.add(licencesPath, 0o644, p.Licences)
	for _, dir := range []string{"docs", "examples", "deploy/ansible", "deploy/helm", "deploy/kubernetes", "deploy/mixin", "deploy/sql"} {
		t.copyAll(dir, "/usr/share/doc/natkit/"+dir)
	}
	t.add("/usr/share/doc/natkit/natkit.spdx.json", 0o644, p.SBOM)
	t.generated("/usr/share/man/man1/", func() (map[string][]byte, error) { return manPages(s) })
	t.generated("/usr/share/man/man1/", func() (map[string][]byte, error) { return fleetPages(root, s) })
	t.generated("/usr/share/", func() (map[string][]byte, error) { return completions(s.Version) })
	for i := range t.files {
		t.files[i].Config = strings.HasPrefix(t.files[i].Path, "/etc/")
	}
	slices.SortFunc(t.files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return t.files, t.err
}

// grower collects files, until the first error.
type grower struct {
	root  string
	files []File
	err   error
}

func (t *grower) add(path string, mode fs.FileMode, text []byte) {
	t.files = append(t.files, File{Path: path, Mode: mode, Text: text})
}

// copy takes a file of the sources.
func (t *grower) copy(from, to string) { t.take(from, to, 0o644) }

// program is copy of one that is run.
func (t *grower) program(from, to string) { t.take(from, to, 0o755) }

func (t *grower) take(from, to string, mode fs.FileMode) {
	text, err := os.ReadFile(filepath.Join(t.root, from))
	if err != nil {
		t.fail(err)
		return
	}
	t.add(to, mode, text)
}

func (t *grower) fail(err error) {
	if t.err == nil {
		t.err = fmt.Errorf("collect the files of the package: %w", err)
	}
}

// copyAll takes a folder of the sources, if there is one.
func (t *grower) copyAll(from, to string) {
	top := filepath.Join(t.root, from)
	if _, err := os.Stat(top); err != nil {
		return
	}
	err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			inside, relErr := filepath.Rel(top, name)
			take := t.copy
			if info, err := d.Info(); err == nil && info.Mode()&0o100 != 0 {
				take = t.program
			}
			take(path.Join(from, filepath.ToSlash(inside)), path.Join(to, filepath.ToSlash(inside)))
			err = relErr
		}
		return err
	})
	if err != nil {
		t.fail(err)
	}
}

// deploy takes whatever units there are, where systemd has those of packages; drop-ins are for the administrator to copy.
func (t *grower) deploy() {
	names, err := filepath.Glob(filepath.Join(t.root, "deploy", "*"))
	if err != nil || len(names) == 0 {
		t.fail(fmt.Errorf("no units in deploy: %w", fs.ErrNotExist))
	}
	for _, name := range names {
		base := filepath.Base(name)
		from := "deploy/" + base
		switch path.Ext(base) {
		case ".service", ".socket", ".timer", ".target", ".path":
			t.copy(from, "/usr/lib/systemd/system/"+base)
		case ".conf":
			t.copy(from, confPath(base))
		}
	}
}

func confPath(base string) string {
	for _, kind := range []string{"sysusers", "tmpfiles"} {
		if name, ok := strings.CutSuffix(base, "."+kind+".conf"); ok {
			return "/usr/lib/" + kind + ".d/" + name + ".conf"
		}
	}
	return "/usr/share/natkit/" + base
}

func (t *grower) generated(under string, make func() (map[string][]byte, error)) {
	files, err := make()
	if err != nil {
		t.fail(err)
	}
	for name, text := range files {
		t.add(under+name, 0o644, text)
	}
}

// local returns the files of a package as those of an archive that is unpacked into /usr/local: units name the program
// there, and what is of /etc is an example.
func local(files []File) []File {
	var all []File
	for _, f := range files {
		switch {
		case f.Config:
			f.Path = "/share/natkit/" + path.Base(f.Path) + ".default"
		default:
			f.Path = strings.TrimPrefix(f.Path, "/usr")
		}
		if strings.HasPrefix(f.Path, "/lib/systemd/") {
			f.Text = bytes.ReplaceAll(f.Text, []byte("/usr/bin/natkit"), []byte("/usr/local/bin/natkit"))
		}
		all = append(all, f)
	}
	return all
}
