package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers itself
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers itself
)

// systems are the formats of packages.
var systems = []string{"deb", "rpm"}

const (
	maintainer = "The natkit authors <natkit@users.noreply.github.com>"
	docs       = "/usr/share/doc/natkit"
	// rpmLicences has them also where documentation is left out.
	rpmLicences = "/usr/share/licenses/natkit"
)

// filesOf returns the files of a package of a format, as its distributions want them.
func filesOf(format string, all []File, root string, s Source) ([]File, error) {
	if format == "rpm" {
		files := slices.DeleteFunc(slices.Clone(all), func(f File) bool { return f.Path == docs+"/copyright" })
		for i := range files {
			if f := &files[i]; f.Path == docs+"/LICENSE" || f.Path == licencesPath {
				f.Path = rpmLicences + "/" + path.Base(f.Path)
			}
		}
		return append(files, directories(files)...), nil
	}
	files := slices.DeleteFunc(slices.Clone(all), func(f File) bool { return f.Path == docs+"/LICENSE" }) // copyright says where it is
	for i := range files {
		var err error
		switch f := &files[i]; f.Path {
		case zshCompletion:
			f.Path = "/usr/share/zsh/vendor-completions/_natkit"
		case docs + "/CHANGELOG.md":
			f.Path = docs + "/changelog.gz"
			f.Text, err = compressed(f.Text)
		}
		if err != nil {
			return nil, err
		}
	}
	changelog, err := compressed([]byte(debianChangelog(s)))
	if err != nil {
		return nil, err
	}
	overrides, err := os.ReadFile(filepath.Join(root, "deploy/packages/lintian-overrides"))
	if err != nil {
		return nil, fmt.Errorf("collect the files of the package: %w", err)
	}
	return append(files, File{Path: docs + "/changelog.Debian.gz", Mode: 0o644, Text: changelog},
		File{Path: "/usr/share/lintian/overrides/natkit", Mode: 0o644, Text: overrides}), nil
}

// directories returns those that belong to natkit alone: rpm removes no directory that no package has.
func directories(files []File) (dirs []File) {
	made := map[string]bool{}
	for _, f := range files {
		for _, own := range []string{docs, rpmLicences, "/usr/share/natkit"} {
			for dir := path.Dir(f.Path); (dir == own || strings.HasPrefix(dir, own+"/")) && !made[dir]; dir = path.Dir(dir) {
				made[dir] = true
				dirs = append(dirs, File{Path: dir, Mode: fs.ModeDir | 0o755})
			}
		}
	}
	return dirs
}

// debianChangelog is about the package; what is new in natkit is in that of natkit.
func debianChangelog(s Source) string {
	return fmt.Sprintf("natkit (%s-1) unstable; urgency=medium\n\n  * natkit %s: changelog.gz has what is new.\n\n -- %s  %s\n",
		s.Version, s.Version, maintainer, s.Time.Format(time.RFC1123Z))
}

const description = `find out why NAT on Linux is slow or loses connections, fix it, prove it
 natkit diagnoses connection tracking and NAT on this host, shows the
 evidence, applies fixes with an undo, reproduces failure modes in network
 namespaces, and does every kind of NAT from one file. One static program;
 services are not started or enabled by this package.`

// systemPackage writes a .deb or .rpm into a folder, and returns its name.
func systemPackage(root, out, work string, s Source, arch, format string, all []File) (string, error) {
	info := &nfpm.Info{
		Name: "natkit", Arch: arch, Platform: "linux", Version: s.Version, VersionSchema: "none", Release: "1",
		Section: "net", Priority: "optional", Maintainer: maintainer, Vendor: "natkit",
		Description: description, Homepage: "https://github.com/natkit/natkit", License: "Apache-2.0", MTime: s.Time, DisableGlobbing: true,
		Overridables: nfpm.Overridables{
			Suggests: []string{"nginx"},
			Scripts: nfpm.Scripts{
				PostInstall: filepath.Join(root, "deploy/packages/postinst"),
				PreRemove:   filepath.Join(root, "deploy/packages/prerm"),
				PostRemove:  filepath.Join(root, "deploy/packages/postrm"),
			},
			Deb: nfpm.Deb{Compression: "xz"},
			RPM: nfpm.RPM{Compression: "xz", BuildHost: "natkit", Group: "Applications/Internet", Summary: "Find out why NAT on Linux is slow or loses connections"},
		},
	}
	all, err := filesOf(format, all, root, s)
	if err != nil {
		return "", err
	}
	if info.Contents, err = contentsOf(all, work, format, s); err != nil {
		return "", err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return "", err
	}
	if format == "rpm" { // what rpmbuild would find: the scripts of the package, and natkit-fleet; Debian has both on every system
		info.Depends, info.Recommends = []string{"/bin/sh"}, []string{"bash"}
	}
	info = nfpm.WithDefaults(info)
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return "", fmt.Errorf("make the %s for %s: %w", format, arch, err)
	}
	name := packager.ConventionalFileName(info)
	f, err := os.Create(filepath.Join(out, name))
	if err != nil {
		return "", err
	}
	if err := packager.Package(info, f); err != nil {
		f.Close()
		return "", fmt.Errorf("make %s: %w", name, err)
	}
	return name, f.Close()
}

// contentsOf writes the files below work, since nfpm reads them from there, and lists them with root as their owner.
func contentsOf(all []File, work, format string, s Source) (list files.Contents, err error) {
	entry := func(c files.Content, mode fs.FileMode) {
		c.FileInfo = &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: s.Time}
		list = append(list, &c)
	}
	for _, f := range all {
		if f.Mode.IsDir() {
			entry(files.Content{Destination: f.Path, Type: files.TypeDir}, f.Mode.Perm())
			continue
		}
		if f.Link != "" {
			entry(files.Content{Source: f.Link, Destination: f.Path, Type: files.TypeSymlink}, f.Mode)
			continue
		}
		from := filepath.Join(work, f.Path)
		if err := os.MkdirAll(filepath.Dir(from), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(from, f.Text, f.Mode); err != nil {
			return nil, err
		}
		entry(files.Content{Source: from, Destination: f.Path, Type: kindOf(f, format)}, f.Mode)
	}
	entry(files.Content{Destination: "/etc/natkit", Type: files.TypeDir}, 0o755)
	return list, nil
}

// kindOf is what a package says of a file: who installs it may leave documentation out, and an upgrade keeps configuration.
func kindOf(f File, format string) string {
	switch {
	case f.Config:
		return files.TypeConfigNoReplace
	case format != "rpm":
		return ""
	case strings.HasPrefix(f.Path, rpmLicences):
		return files.TypeRPMLicense
	case strings.HasPrefix(f.Path, "/usr/share/doc/") || strings.HasPrefix(f.Path, "/usr/share/man/"):
		return files.TypeRPMDoc
	}
	return ""
}
