package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imageFiles are those of an image: natkit alone, no shell, no libraries, and the licences under which it is given.
func imageFiles(all []File) (files []File) {
	for _, f := range all {
		if slices.Contains([]string{"/usr/bin/natkit", "/usr/share/doc/natkit/LICENSE", licencesPath}, f.Path) {
			files = append(files, f)
		}
	}
	return files
}

// image is one from scratch, of these files.
func image(s Source, v Variant, arch string, files []File) (v1.Image, error) {
	text, err := archive("", files, s.Time)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: s.Time}, CreatedBy: "natkit " + s.Version}})
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", arch, v1.Time{Time: s.Time}
	file.Config = v1.Config{Entrypoint: []string{"/usr/bin/natkit"}, Env: []string{"PATH=/usr/bin"}, Labels: labels(s, v)}
	return mutate.ConfigFile(img, file)
}

func labels(s Source, v Variant) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title": v.Name, "org.opencontainers.image.version": s.Version, "org.opencontainers.image.revision": s.Commit,
		"org.opencontainers.image.source": "https://github.com/natkit/natkit", "org.opencontainers.image.licenses": "Apache-2.0",
	}
}

// images writes one archive of an OCI layout with the images of all architectures ('skopeo copy oci-archive:…', 'podman
// load'), and one for each that 'docker load' takes. It returns the files' names.
func images(out, work string, s Source, v Variant, all map[string]v1.Image) (names []string, err error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range architectures {
		img := all[arch]
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
		reference, err := name.NewTag("natkit/" + v.Name + ":" + s.tag())
		if err != nil {
			return nil, err
		}
		file := fmt.Sprintf("%s_%s_docker_%s.tar", v.Name, s.Version, arch)
		if err := tarball.WriteToFile(filepath.Join(out, file), reference, img); err != nil {
			return nil, fmt.Errorf("write %s: %w", file, err)
		}
		names = append(names, file)
	}
	// The layout names the index, so that a tool which is given the archive alone finds it.
	top := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add: index, Descriptor: v1.Descriptor{Annotations: map[string]string{"org.opencontainers.image.ref.name": s.tag()}}})
	dir := filepath.Join(work, "oci-"+v.Name)
	if _, err := layout.Write(dir, top); err != nil {
		return nil, fmt.Errorf("write the OCI layout: %w", err)
	}
	file := fmt.Sprintf("%s_%s_oci.tar", v.Name, s.Version)
	text, err := archiveOf(dir, s)
	if err == nil {
		err = os.WriteFile(filepath.Join(out, file), text, 0o644)
	}
	return append(names, file), err
}

// archiveOf is a tar file of a folder.
func archiveOf(dir string, s Source) ([]byte, error) {
	var files []File
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		inside, relErr := filepath.Rel(dir, path)
		files = append(files, File{Path: "/" + filepath.ToSlash(inside), Mode: 0o644, Text: text})
		if err == nil {
			err = relErr
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	sort.Slice(files, func(i, j int) bool { return files[i].Path < files[j].Path })
	return archive("", files, s.Time)
}
