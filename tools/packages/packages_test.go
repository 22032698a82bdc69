package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"aead.dev/minisign"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	spdxjson "github.com/spdx/tools-golang/json"
)

var (
	noon = time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC)
	some = Source{Words: "v1.2.0 0123abc 2027-01-31T12:00:00Z", Version: "1.2.0", Commit: "0123abc", Time: noon}
)

func TestPackageVersion(t *testing.T) {
	for described, want := range map[string]string{
		"v1.2.0": "1.2.0", "v1.2.0-dirty": "1.2.0+dirty", "v1.2.0-rc.1": "1.2.0~rc.1",
		"v1.2.0-3-g0123abc": "1.2.0+3.g0123abc", "v1.2.0-3-g0123abc-dirty": "1.2.0+3.g0123abc.dirty", "v1.2.0-rc.1-3-g0123abc": "1.2.0~rc.1+3.g0123abc",
		"0123abcd": "0.0.0~git20270131120000.0123abc", "0123abcd-dirty": "0.0.0~git20270131120000.0123abc+dirty",
		"1.2.0": "", "v1.2": "", "unknown": "", "": "", "v1.2.0; rm": "",
	} {
		got, err := packageVersion(described, noon)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v, want %q", described, got, err, want)
		}
	}
}

// TestVersionsSort: dpkg and rpm sort versions as they follow each other.
func TestVersionsSort(t *testing.T) {
	versions := []string{"0.0.0~git20270131120000.0123abc", "1.2.0~rc.1", "1.2.0~rc.1+3.g0123abc", "1.2.0~rc.2", "1.2.0", "1.2.0+3.g0123abc", "1.2.1"}
	compare := map[string]func(a, b string) []string{
		"dpkg": func(a, b string) []string { return []string{"--compare-versions", a, "lt", b} },
		"rpm": func(a, b string) []string {
			return []string{"--eval", "%{lua: print(rpm.vercmp('" + a + "', '" + b + "'))}"}
		},
	}
	for program, args := range compare {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Logf("%s is not installed: not tried", program)
			continue
		}
		for i := range len(versions) - 1 {
			out, err := exec.Command(path, args(versions[i], versions[i+1])...).CombinedOutput()
			if err != nil || program == "rpm" && strings.TrimSpace(string(out)) != "-1" {
				t.Errorf("%s: %s is not before %s: %v %s", program, versions[i], versions[i+1], err, out)
			}
		}
	}
}

// TestMarkdown: what is laid out in a help text stays so in a page, and nothing in it is taken for Markdown.
func TestMarkdown(t *testing.T) {
	got := markdown("Set nf_conntrack_max to <N>.\nAs in\n  a  1\n  b  2\nand *so* on.\n")
	want := "Set nf\\_conntrack\\_max to \\<N>.\nAs in\n\n    a  1\n    b  2\n\nand \\*so\\* on.\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestManPages: each verb has a page, with its sections and its examples as they are written.
func TestManPages(t *testing.T) {
	pages, err := manPages(some)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"natkit.1.gz", "natkit-doctor.1.gz", "natkit-gateway-apply.1.gz", "natkit-tune-list.1.gz"} {
		page := unpacked(t, pages[name])
		for _, want := range []string{".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH EXAMPLE\n.EX\n  "} {
			if !strings.Contains(page, want) {
				t.Errorf("%s has no %s", name, want)
			}
		}
	}
	if list := unpacked(t, pages["natkit-tune-list.1.gz"]); !strings.Contains(list, "\npending      waits for") {
		t.Errorf("the table of tune list is not laid out:\n%s", list)
	}
	fleet, err := fleetPages("../..", some)
	if err != nil || len(fleet) != 2 {
		t.Fatalf("pages of natkit-fleet: %d, %v", len(fleet), err)
	}
	for name, want := range map[string]string{"natkit-fleet": "usage: natkit\\-fleet doctor|collect", "kubectl-natkit": "\\-n NAMESPACE"} {
		page := unpacked(t, fleet[name+".1.gz"])
		for _, want := range []string{".SH NAME\n" + strings.ReplaceAll(name, "-", `\-`) + ` \- collect bundles of`, want, "\nExit codes: "} {
			if !strings.Contains(page, want) {
				t.Errorf("the page of %s has no %q:\n%s", name, want, page)
			}
		}
	}
	files, err := completions("1.2.0")
	if err != nil || len(files) != 3 {
		t.Fatalf("completions: %d, %v", len(files), err)
	}
	for name, text := range files {
		if !bytes.Contains(text, []byte("__complete")) {
			t.Errorf("%s completes nothing", name)
		}
	}
}

func unpacked(t *testing.T, text []byte) string {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

func TestTree(t *testing.T) {
	files, err := tree("../..", some, Program{[]byte("program"), []byte("{}"), []byte("licences")})
	if err != nil {
		t.Fatal(err)
	}
	var paths, configs []string
	for _, f := range files {
		paths = append(paths, f.Path)
		if f.Config {
			configs = append(configs, f.Path)
		}
	}
	if !slices.IsSorted(paths) || len(slices.Compact(slices.Clone(paths))) != len(paths) {
		t.Error("the files are not sorted, or one is there twice")
	}
	if !slices.Equal(configs, []string{"/etc/default/natkit"}) {
		t.Errorf("configuration files are %v", configs)
	}
	fleet := slices.IndexFunc(files, func(f File) bool { return f.Path == "/usr/bin/natkit-fleet" })
	plugin := slices.IndexFunc(files, func(f File) bool { return f.Path == "/usr/bin/kubectl-natkit" })
	if fleet < 0 || plugin < 0 || files[fleet].Mode != 0o755 || files[plugin].Link != "natkit-fleet" {
		t.Errorf("natkit-fleet at %d and its link at %d are not programs", fleet, plugin)
	}
	units, _ := filepath.Glob("../../deploy/*.service")
	for _, unit := range units {
		if !slices.Contains(paths, "/usr/lib/systemd/system/"+filepath.Base(unit)) {
			t.Errorf("%s is not packaged", unit)
		}
	}
	if got := imageFiles(files); len(got) != 3 {
		t.Errorf("an image has %d of its three files", len(got))
	}
	for _, f := range local(files) {
		if strings.HasPrefix(f.Path, "/usr") || strings.HasPrefix(f.Path, "/etc") || strings.HasPrefix(f.Path, "/lib/systemd") && bytes.Contains(f.Text, []byte("/usr/bin/natkit")) {
			t.Errorf("%s is not one of /usr/local", f.Path)
		}
	}
}

// TestFilesOf: a package has what its distributions want, where they want it, and an .rpm the directories that are natkit's alone.
func TestFilesOf(t *testing.T) {
	all, err := tree("../..", some, Program{[]byte("program"), []byte("{}"), []byte("licences")})
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]map[string]File{}
	for _, format := range systems {
		files, err := filesOf(format, all, "../..", some)
		if err != nil {
			t.Fatal(err)
		}
		has[format] = map[string]File{}
		for _, f := range files {
			if _, twice := has[format][f.Path]; twice {
				t.Errorf("%s: %s is there twice", format, f.Path)
			}
			has[format][f.Path] = f
		}
	}
	for _, want := range []struct {
		path     string
		deb, rpm bool
	}{
		{"/usr/bin/natkit", true, true}, {licencesPath, true, false}, {rpmLicences + "/licences.txt", false, true}, {rpmLicences, false, true},
		{docs + "/copyright", true, false}, {docs + "/LICENSE", false, false}, {rpmLicences + "/LICENSE", false, true}, {docs + "/changelog.Debian.gz", true, false}, {docs + "/changelog.gz", true, false}, {docs + "/CHANGELOG.md", false, true}, {"/usr/share/lintian/overrides/natkit", true, false},
		{"/usr/share/zsh/vendor-completions/_natkit", true, false}, {zshCompletion, false, true},
		{docs, false, true}, {docs + "/docs/failure-modes", false, true}, {"/usr/share/natkit", false, true},
		{"/usr/share/doc", false, false}, {"/usr/share", false, false}, {"/usr/share/man/man1", false, false},
	} {
		_, deb := has["deb"][want.path]
		_, rpm := has["rpm"][want.path]
		if deb != want.deb || rpm != want.rpm {
			t.Errorf("%s: of the .deb %v, of the .rpm %v", want.path, deb, rpm)
		}
	}
	if text := unpacked(t, has["deb"][docs+"/changelog.Debian.gz"].Text); !strings.HasPrefix(text, "natkit (1.2.0-1) ") || !strings.HasSuffix(text, "  Sun, 31 Jan 2027 12:00:00 +0000\n") {
		t.Errorf("changelog %q", text)
	}
	for path, want := range map[string]string{"/etc/default/natkit": "config|noreplace", "/usr/bin/natkit": "", rpmLicences + "/LICENSE": "license", rpmLicences + "/licences.txt": "license", docs + "/README.md": "doc", "/usr/share/man/man1/natkit.1.gz": "doc"} {
		if got := kindOf(has["rpm"][path], "rpm"); got != want {
			t.Errorf("%s is of kind %q, want %q", path, got, want)
		}
	}
}

// TestArchive: an archive has its folders before its files, all of root's and of one time, and is the same each time.
func TestArchive(t *testing.T) {
	files := []File{{Path: "/bin/b", Mode: 0o777, Link: "natkit"}, {Path: "/bin/natkit", Mode: 0o755, Text: []byte("program")}, {Path: "/share/doc/a", Mode: 0o644, Text: []byte("a")}}
	text, err := archive("natkit-1.2.0", files, noon)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(bytes.NewReader(text)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		if link := strings.HasSuffix(h.Name, "/b"); link != (h.Typeflag == tar.TypeSymlink) || link && h.Linkname != "natkit" {
			t.Errorf("%s is of kind %c and leads to %q", h.Name, h.Typeflag, h.Linkname)
		}
		if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(noon) {
			t.Errorf("%s: %+v", h.Name, h)
		}
	}
	want := []string{"natkit-1.2.0/", "natkit-1.2.0/bin/", "natkit-1.2.0/bin/b", "natkit-1.2.0/bin/natkit", "natkit-1.2.0/share/", "natkit-1.2.0/share/doc/", "natkit-1.2.0/share/doc/a"}
	if !slices.Equal(names, want) {
		t.Errorf("it has %v, want %v", names, want)
	}
	if again, err := archive("natkit-1.2.0", files, noon); err != nil || !bytes.Equal(text, again) {
		t.Errorf("a second archive differs (%v)", err)
	}
}

// TestImages: the images are valid, of both architectures, start natkit, and are read back by what loads them.
func TestImages(t *testing.T) {
	out, work := t.TempDir(), t.TempDir()
	all := map[string]v1.Image{}
	for _, arch := range architectures {
		img, err := image(some, variants[1], arch, []File{{Path: "/usr/bin/natkit", Mode: 0o755, Text: []byte("program for " + arch)}})
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil || config.Architecture != arch || !slices.Equal(config.Config.Entrypoint, []string{"/usr/bin/natkit"}) {
			t.Errorf("%s: configuration %+v, %v", arch, config, err)
		}
		all[arch] = img
	}
	names, err := images(out, work, some, variants[1], all)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"natkit-readonly_1.2.0_docker_amd64.tar", "natkit-readonly_1.2.0_docker_arm64.tar", "natkit-readonly_1.2.0_oci.tar"}; !slices.Equal(names, want) {
		t.Fatalf("files %v, want %v", names, want)
	}
	loaded, err := tarball.ImageFromPath(filepath.Join(out, names[0]), nil)
	if err == nil {
		err = validate.Image(loaded)
	}
	if err != nil {
		t.Errorf("docker load: %v", err)
	}
	index, err := layout.ImageIndexFromPath(filepath.Join(work, "oci-natkit-readonly"))
	if err == nil {
		err = validate.Index(index)
	}
	if err != nil {
		t.Errorf("OCI layout: %v", err)
	}
	text, err := os.ReadFile(filepath.Join(out, names[2]))
	if err != nil || !bytes.Contains(text, []byte(`"imageLayoutVersion"`)) {
		t.Errorf("%s is no OCI layout (%v)", names[2], err)
	}
	if skopeo, err := exec.LookPath("skopeo"); err == nil {
		inspected, err := exec.Command(skopeo, "inspect", "--override-arch=arm64", "--override-os=linux", "oci-archive:"+filepath.Join(out, names[2])).CombinedOutput()
		if err != nil || !bytes.Contains(inspected, []byte(`"arm64"`)) {
			t.Errorf("skopeo: %v\n%s", err, inspected)
		}
	}
}

// TestSBOM lists the modules of a program, here of this test.
func TestSBOM(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	text, err := sbom(some, "natkit", "amd64", binary)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := spdxjson.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, p := range doc.Packages {
		found[p.PackageName] = p.PackageVersion
	}
	sum := sha256.Sum256(binary)
	if found["natkit"] != "v1.2.0" || found["stdlib"] == "" || found["github.com/spf13/cobra"] == "" || doc.Packages[0].PackageChecksums[0].Value != hex.EncodeToString(sum[:]) {
		t.Errorf("it lists %v", found)
	}
	if len(doc.Relationships) != len(doc.Packages) {
		t.Errorf("%d relationships of %d packages", len(doc.Relationships), len(doc.Packages))
	}
}

// TestLicences: each module that is linked in has its licences and notices in the text, here of this test; one without is an error.
func TestLicences(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"LICENSE": "the licence\r\n", "NOTICE.txt": "a notice", "licence.go": "package a", "README": "readme"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	modules := slices.DeleteFunc(info.Deps, func(m *debug.Module) bool { return m.Replace != nil }) // natkit itself
	var listed string
	for _, m := range modules {
		listed += m.Path + "@" + m.Version + " " + dir + "\n"
	}
	parts := partsOf(modules, listed)
	text, err := licences(parts)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range modules {
		if !bytes.Contains(text, []byte("\n"+m.Path+"@"+m.Version+": LICENSE\n\nthe licence\n")) || !bytes.Contains(text, []byte("@"+m.Version+": NOTICE.txt\n\na notice\n")) {
			t.Errorf("%s has not both texts", m.Path)
		}
	}
	if bytes.Contains(text, []byte("readme")) || bytes.Contains(text, []byte("package a")) {
		t.Error("other files are taken for licences")
	}
	for what, bad := range map[string]Part{"without a licence": {"m@v1", t.TempDir()}, "not in the module cache": {"m@v1", ""}} {
		if _, err := licences([]Part{bad}); err == nil || !strings.Contains(err.Error(), "m@v1") {
			t.Errorf("a module %s: %v", what, err)
		}
	}
}

// TestSign: checksums are signed where a key is given, and not otherwise.
func TestSign(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("a"), 0o644); err != nil {
		t.Fatal(err)
	}
	text, err := sums(dir, []string{"a"})
	if want := "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb  a\n"; err != nil || text != want {
		t.Fatalf("%q, %v, want %q", text, err, want)
	}
	public, secret, err := minisign.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := minisign.EncryptKey("password", secret)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "key"), key, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	getenv := func(name string) string { return env[name] }
	if done, err := sign(dir, text, some, getenv); done || err != nil {
		t.Errorf("without a key: %v, %v", done, err)
	}
	env[keyEnv] = filepath.Join(dir, "key")
	if _, err := sign(dir, text, some, getenv); err == nil {
		t.Error("a wrong password is accepted")
	}
	env[passwordEnv] = "password"
	done, err := sign(dir, text, some, getenv)
	signature, readErr := os.ReadFile(filepath.Join(dir, "SHA256SUMS.minisig"))
	if !done || err != nil || readErr != nil || !minisign.Verify(public, []byte(text), signature) || minisign.Verify(public, []byte("b"), signature) {
		t.Errorf("signature %q: %v, %v, %v", signature, done, err, readErr)
	}
}
