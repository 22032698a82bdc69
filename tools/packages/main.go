// Command packages makes what a release of natkit consists of: packages for Debian and RPM, archives, images, lists of
// what is in them, checksums, and a signature where there is a key. The same sources and the same Go give the same bytes.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func main() {
	root := flag.String("root", "../..", "the sources of natkit")
	out := flag.String("out", "dist", "the folder for the packages; what an earlier run left there is removed")
	version := flag.String("version", "", "what scripts/version prints")
	epoch := flag.String("epoch", os.Getenv("SOURCE_DATE_EPOCH"), "the time of all files, in seconds since 1970")
	only := flag.String("only", "", "make the .deb and .rpm of this architecture alone")
	flag.Parse()
	seconds, err := strconv.ParseInt(*epoch, 10, 64)
	if err != nil {
		err = fmt.Errorf("-epoch %q: expected seconds since 1970 (SOURCE_DATE_EPOCH)", *epoch)
	} else {
		err = run(*root, *out, *version, *only, time.Unix(seconds, 0))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "packages: %v\n", err)
		os.Exit(1)
	}
}

// release is one run.
type release struct {
	root, out, work string
	source          Source
	names           []string
}

func run(root, out, version, only string, at time.Time) error {
	source, err := sourceOf(version, at)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "natkit-packages-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if root, err = filepath.Abs(root); err != nil {
		return err
	}
	if err := clearOut(out); err != nil {
		return err
	}
	r := &release{root: root, out: out, work: work, source: source}
	if only != "" {
		if err := r.packagesOf(only); err != nil {
			return err
		}
		return r.finish()
	}
	for _, v := range variants {
		if err := r.variant(v); err != nil {
			return err
		}
	}
	return r.finish()
}

// clearOut makes the folder, without what an earlier run left there.
func clearOut(out string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, pattern := range []string{"natkit*", "SHA256SUMS*"} {
		old, err := filepath.Glob(filepath.Join(out, pattern))
		if err != nil {
			return err
		}
		for _, name := range old {
			if err := os.Remove(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// variant makes all of natkit, or archives and images of the one that cannot change a host.
func (r *release) variant(v Variant) error {
	all := map[string]v1.Image{}
	for _, arch := range architectures {
		program, err := r.program(v, arch)
		if err != nil {
			return err
		}
		files, err := tree(r.root, r.source, program)
		if err != nil {
			return err
		}
		if err := r.archive(v, arch, files); err != nil {
			return err
		}
		if v.Tags == "" {
			if err := r.systems(arch, files); err != nil {
				return err
			}
		}
		if all[arch], err = image(r.source, v, arch, imageFiles(files)); err != nil {
			return fmt.Errorf("make the image of %s for %s: %w", v.Name, arch, err)
		}
	}
	names, err := images(r.out, r.work, r.source, v, all)
	for _, name := range names {
		fmt.Println(filepath.Join(r.out, name))
	}
	r.names = append(r.names, names...)
	return err
}

// packagesOf makes the .deb and .rpm of one architecture.
func (r *release) packagesOf(arch string) error {
	program, err := r.program(variants[0], arch)
	if err != nil {
		return err
	}
	files, err := tree(r.root, r.source, program)
	if err != nil {
		return err
	}
	return r.systems(arch, files)
}

// Program is natkit, the list of what is linked into it, and the licences of that.
type Program struct{ Binary, SBOM, Licences []byte }

// program builds natkit.
func (r *release) program(v Variant, arch string) (p Program, err error) {
	at := filepath.Join(r.work, v.Name+"-"+arch)
	if err := build(r.root, at, r.source, v, arch); err != nil {
		return p, err
	}
	if p.Binary, err = os.ReadFile(at); err != nil {
		return p, err
	}
	if p.SBOM, err = sbom(r.source, v.Name, arch, p.Binary); err != nil {
		return p, err
	}
	parts, err := linkedParts(r.root, arch, v.Tags, p.Binary)
	if err != nil {
		return p, err
	}
	if p.Licences, err = licences(parts); err != nil {
		return p, err
	}
	return p, r.write(fmt.Sprintf("%s_%s_linux_%s.spdx.json", v.Name, r.source.Version, arch), p.SBOM)
}

func (r *release) archive(v Variant, arch string, files []File) error {
	text, err := archive(fmt.Sprintf("%s-%s-linux-%s", v.Name, r.source.Version, arch), local(files), r.source.Time)
	if err == nil {
		text, err = compressed(text)
	}
	if err != nil {
		return fmt.Errorf("make the archive of %s for %s: %w", v.Name, arch, err)
	}
	return r.write(fmt.Sprintf("%s_%s_linux_%s.tar.gz", v.Name, r.source.Version, arch), text)
}

func (r *release) systems(arch string, files []File) error {
	for _, format := range systems {
		name, err := systemPackage(r.root, r.out, filepath.Join(r.work, format+"-"+arch), r.source, arch, format, files)
		if err != nil {
			return err
		}
		r.names = append(r.names, name)
		fmt.Println(filepath.Join(r.out, name))
	}
	return nil
}

func (r *release) write(name string, text []byte) error {
	r.names = append(r.names, name)
	fmt.Println(filepath.Join(r.out, name))
	return os.WriteFile(filepath.Join(r.out, name), text, 0o644)
}

// finish writes the checksums, and signs them where there is a key.
func (r *release) finish() error {
	text, err := sums(r.out, r.names)
	if err == nil {
		err = os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(text), 0o644)
	}
	if err != nil {
		return err
	}
	signed, err := sign(r.out, text, r.source, os.Getenv)
	if err == nil && !signed {
		fmt.Fprintf(os.Stderr, "packages: SHA256SUMS is not signed: no key is given (%s=FILE, a secret key of minisign)\n", keyEnv)
	}
	return err
}
