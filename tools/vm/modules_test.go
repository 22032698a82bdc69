package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestModuleInfo(t *testing.T) {
	var m module
	m.parse([]byte("license=GPL\x00depends=nf-conntrack,libcrc32c\x00alias=net-sch-netem\x00alias=ip_vs_rr\x00softdep=pre: crc32c-intel nf_defrag_ipv4 post: late\x00retpoline=Y"))
	want := module{aliases: []string{"net-sch-netem", "ip_vs_rr"}, needs: []string{"nf_conntrack", "libcrc32c", "crc32c_intel", "nf_defrag_ipv4"}}
	if d := cmp.Diff(want, m, cmp.AllowUnexported(module{})); d != "" {
		t.Error(d)
	}
	m.parse([]byte("rubbish"))
	m.parse(nil)
}

func modulesForTest() map[string]module {
	all := map[string]module{}
	for _, m := range []module{
		{file: "kernel/net/nat.ko", name: "nat", needs: []string{"conntrack", "crc"}, aliases: []string{"nft-chain-2-nat"}},
		{file: "kernel/net/conntrack.ko", name: "conntrack", needs: []string{"crc", "defrag", "builtin"}},
		{file: "kernel/net/defrag.ko", name: "defrag"},
		{file: "kernel/drivers/md/crc.ko", name: "crc"},
		{file: "kernel/drivers/md/raid.ko", name: "raid", needs: []string{"crc"}},
		{file: "kernel/net/bluetooth/bt.ko", name: "bt"},
		{file: "kernel/net/loop.ko", name: "loop", needs: []string{"loop"}},
	} {
		all[m.name] = m
	}
	return all
}

func TestDependencyFile(t *testing.T) {
	all := modulesForTest()
	names := chooseModules(all)
	if d := cmp.Diff([]string{"conntrack", "crc", "defrag", "loop", "nat"}, names); d != "" {
		t.Error(d)
	}
	// The one to load first stands last.
	want := `kernel/net/conntrack.ko: kernel/net/defrag.ko kernel/drivers/md/crc.ko
kernel/drivers/md/crc.ko:
kernel/net/defrag.ko:
kernel/net/loop.ko:
kernel/net/nat.ko: kernel/net/conntrack.ko kernel/net/defrag.ko kernel/drivers/md/crc.ko
`
	if d := cmp.Diff(want, dependencyFile(all, names)); d != "" {
		t.Error(d)
	}
	if got := aliasFile(all, names); got != "alias nft-chain-2-nat nat\n" {
		t.Errorf("aliases %q", got)
	}
}

func TestReadModulesTellsWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	if _, err := readModules(dir); err == nil || !strings.Contains(err.Error(), "there are none") {
		t.Errorf("empty directory: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "x.ko"), []byte("not ELF"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readModules(dir); err == nil || !strings.Contains(err.Error(), "x.ko") {
		t.Errorf("a file that is no module: %v", err)
	}
}

// TestArchive reads the headers back: the format's fields are all hexadecimal.
func TestArchive(t *testing.T) {
	a := archive{}
	file := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(file, []byte("four+"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := a.addProgram("/usr/bin/big", file); err != nil {
		t.Fatal(err)
	}
	a.add("/bin", entry{mode: link | 0o777, text: "usr/bin"})
	a.add("/dev/console", entry{mode: character | 0o600, major: 5, minor: 1})
	var out bytes.Buffer
	if err := a.write(&out); err != nil {
		t.Fatal(err)
	}
	want := []string{"bin 120777 usr/bin", "dev 40755 ", "dev/console 20600 ", "usr 40755 ", "usr/bin 40755 ", "usr/bin/big 100700 four+", "TRAILER!!! 0 "}
	if d := cmp.Diff(want, readArchive(t, out.Bytes())); d != "" {
		t.Error(d)
	}
}

func TestArchiveFollowsLinks(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(dir+"/usr/bin", 0o755), os.WriteFile(dir+"/usr/bin/tool-1", nil, 0o755),
		os.Symlink("usr/bin", dir+"/bin"), os.Symlink("tool-1", dir+"/usr/bin/tool"), os.Symlink(dir+"/loop", dir+"/loop"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	a := archive{}
	if err := a.addHost(dir + "/bin/tool"); err != nil {
		t.Fatal(err)
	}
	if a[dir+"/bin"].text != "usr/bin" || a[dir+"/usr/bin/tool"].text != "tool-1" || a[dir+"/usr/bin/tool-1"].from == "" {
		t.Errorf("%v", a)
	}
	if err := a.addHost(dir + "/loop"); err == nil || !strings.Contains(err.Error(), "too many symbolic links") {
		t.Errorf("a loop: %v", err)
	}
	if err := a.addHost(dir + "/absent"); err == nil {
		t.Error("an absent file was added")
	}
}
