package main

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"path"
	"time"
)

// archive is a tar file of these files below a folder, with root as owner and one time for all.
func archive(folder string, files []File, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	made := map[string]bool{"": true, ".": true, "/": true}
	var directory func(string) error
	directory = func(dir string) error {
		if made[dir] {
			return nil
		}
		if err := directory(path.Dir(dir)); err != nil {
			return err
		}
		made[dir] = true
		return w.WriteHeader(header(dir+"/", tar.TypeDir, 0o755, 0, at))
	}
	for _, f := range files {
		name := path.Join(folder, f.Path)
		if folder == "" {
			name = f.Path[1:]
		}
		if err := directory(path.Dir(name)); err != nil {
			return nil, err
		}
		h := header(name, tar.TypeReg, f.Mode, int64(len(f.Text)), at)
		if f.Link != "" {
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.Link
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.Text); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

func header(name string, kind byte, mode fs.FileMode, size int64, at time.Time) *tar.Header {
	return &tar.Header{Name: name, Typeflag: kind, Mode: int64(mode), Size: size, ModTime: at, Uname: "root", Gname: "root", Format: tar.FormatPAX}
}
