package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers itself
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers itself
)

// systems are the formats of packages, and where their distributions keep completions of zsh.
var systems = []struct{ format, zsh string }{
	{"deb", "/usr/share/zsh/vendor-completions/_natkit"},
	{"rpm", "/usr/share/zsh/site-functions/_natkit"},
}

const description = `find out why NAT on Linux is slow or loses connections, fix it, prove it
 natkit diagnoses connection tracking and NAT on this host, shows the evidence,
 applies fixes with an undo, reproduces failure modes in network namespaces, and
 does every kind of NAT from one file. One static program; services are not
 started or enabled by this package.`

// systemPackage writes a .deb or .rpm into a folder, and returns its name.
func systemPackage(root, out, work string, s Source, arch string, format, zsh string, all []File) (string, error) {
	info := &nfpm.Info{
		Name: "natkit", Arch: arch, Platform: "linux", Version: s.Version, VersionSchema: "none", Release: "1",
		Section: "net", Priority: "optional", Maintainer: "The natkit authors <natkit@users.noreply.github.com>", Vendor: "natkit",
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
	contents, err := contentsOf(all, work, zsh, s)
	if err != nil {
		return "", err
	}
	info.Contents = contents
	packager, err := nfpm.Get(format)
	if err != nil {
		return "", err
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
func contentsOf(all []File, work, zsh string, s Source) (list files.Contents, err error) {
	entry := func(c files.Content, mode fs.FileMode) {
		c.FileInfo = &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: s.Time}
		list = append(list, &c)
	}
	for _, f := range all {
		if filepath.Base(f.Path) == "_natkit" {
			f.Path = zsh
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
		kind := ""
		if f.Config {
			kind = files.TypeConfigNoReplace
		}
		entry(files.Content{Source: from, Destination: f.Path, Type: kind}, f.Mode)
	}
	entry(files.Content{Destination: "/etc/natkit", Type: files.TypeDir}, 0o755)
	return list, nil
}
