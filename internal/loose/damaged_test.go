package loose

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/snapshot"
)

// packers compress.
var packers = map[string]func(io.Writer) (io.WriteCloser, error){
	"tar": func(w io.Writer) (io.WriteCloser, error) { return nopCloser{w}, nil },
	"gz":  func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil },
	"xz":  func(w io.Writer) (io.WriteCloser, error) { return xz.NewWriter(w) },
	"zst": func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1)) },
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// packed is an archive of files, in this order: name, text, name, text.
func packed(t testing.TB, by string, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	out, err := packers[by](&b)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(out)
	for i := 0; i < len(files); i += 2 {
		err = errors.Join(err, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: files[i], Size: int64(len(files[i+1])), Mode: 0o644, ModTime: noon}))
		_, failed := io.WriteString(w, files[i+1])
		err = errors.Join(err, failed)
	}
	if err := errors.Join(err, w.Close(), out.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// someConnections are that many lines that hardly compress.
func someConnections(n int) string {
	random := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	for range n {
		port := 1024 + random.IntN(60000)
		fmt.Fprintf(&b, "tcp      6 %d ESTABLISHED src=198.18.%d.%d dst=198.19.0.2 sport=%d dport=443 src=198.19.0.2 dst=198.18.0.2 sport=443 dport=%d [ASSURED] mark=0 use=1\n",
			100+random.IntN(400000), random.IntN(256), random.IntN(256), port, port)
	}
	return b.String()
}

func walkBytes(data []byte) Walk {
	return func(fn func(*File) error) error { return Archive(&File{"sos.tar", noon, bytes.NewReader(data)}, fn) }
}

// checkCut reads an archive that is cut short or changed: it has nothing that the whole one has not, unless damage is
// reported as such, and reports that something is lost. It returns whether something could be read.
func checkCut(t *testing.T, data []byte, whole *Host, what string) bool {
	t.Helper()
	h, err := Read(walkBytes(data), "", Options{Budget: snapshot.NewBudget(8 << 20)})
	if err != nil {
		return false
	}
	if len(h.Lost) == 0 && len(h.Texts) != len(whole.Texts) { // the package xz does not miss the index at the end
		t.Fatalf("%s: %d texts of %d, and nothing counts as lost: %q", what, len(h.Texts), len(whole.Texts), h.Notes)
	}
	s, all := last(h), last(whole)
	for name, value := range s.Sysctls {
		if name != snapshot.ConntrackCount && value != all.Sysctls[name] {
			t.Fatalf("%s: %s is %q, and was %q", what, name, value, all.Sysctls[name])
		}
	}
	if s.Stats != nil && !slices.EqualFunc(s.Stats, all.Stats, func(a, b map[string]uint64) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
		t.Fatalf("%s: counters %v", what, s.Stats)
	}
	if s.Rules != nil && s.RulesCut == "" && len(s.Rules) != len(all.Rules) {
		t.Fatalf("%s: %d tables of %d, and they count as whole", what, len(s.Rules), len(all.Rules))
	}
	if s.Table != nil {
		n := int64(0)
		_, err := h.EachEntry(s.Table, func(e *conntrack.Entry) error {
			if n++; e.Orig.DstPort != 443 || e.Orig.SrcPort != e.Reply.DstPort {
				t.Fatalf("%s: entry %d is half a line: %+v", what, n, e)
			}
			return nil
		})
		if n != s.Table.Entries || s.Table.Cut() != errors.Is(err, io.ErrUnexpectedEOF) || !s.Table.Cut() && n != all.Table.Entries {
			t.Fatalf("%s: %d of %d entries, cut %t: %v", what, n, all.Table.Entries, s.Table.Cut(), err)
		}
	}
	return true
}

// TestCutAnywhere: of an archive that is cut short what could be read is used, as far as something follows from it, and the
// rest is known to be lost, wherever it ends.
func TestCutAnywhere(t *testing.T) {
	const rules = "*nat\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n*filter\n:FORWARD DROP [0:0]\nCOMMIT\n"
	for by := range packers {
		connections, steps := 60, 300
		if by == "zst" { // its blocks are large
			connections, steps = 2000, 40
		}
		files := []string{"s/sysctl_-a", someSysctl, "s/conntrack_-L", someConnections(connections), "s/conntrack_-S", someStats, "s/iptables-save", rules, "s/dmesg", someDmesg, "s/uname", "Linux a 6.1.0 #1 SMP\n"}
		data := packed(t, by, files...)
		whole, err := Read(walkBytes(data), "", Options{})
		if err != nil || len(whole.Lost) > 0 || len(whole.Notes) > 0 {
			t.Fatalf("%s: %v, %+v", by, err, whole)
		}
		read := 0
		ends := len(data)
		if by == "tar" {
			ends -= 2 * blockBytes // the zeros that end it
		}
		for n := 1; n < ends; n += 1 + ends/steps {
			if checkCut(t, data[:n], whole, fmt.Sprintf("%s, %d of %d bytes", by, n, len(data))) {
				read++
			}
		}
		if read == 0 {
			t.Errorf("%s: nothing can be read of an archive that is cut short", by)
		}
	}
}

// TestCutMessages: what was lost is reported in one line.
func TestCutMessages(t *testing.T) {
	files := []string{"s/sysctl_-a", someSysctl, "s/ss_-tan", "State Recv-Q Send-Q Local Peer\nLISTEN 0 128 0.0.0.0:80 0.0.0.0:*\n", "s/date", "x"}
	data := packed(t, "tar", files...)
	lost := func(data []byte) []string { return readBytes(t, data).Lost }
	for name, c := range map[string]struct {
		data []byte
		want []string
	}{
		"between two files": {data[:2*blockBytes], []string{"sos.tar is truncated at s/sysctl_-a: what followed is lost"}},
		"within a file":     {data[:3*blockBytes+40], []string{"s/ss_-tan (ss -tan) cannot be read to its end: it is truncated", "sos.tar is truncated at s/ss_-tan: what followed is lost"}},
		"whole":             {data, nil},
	} {
		if got := lost(c.data); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if h := readBytes(t, data[:3*blockBytes+40]); h.Last().Listening || !slices.ContainsFunc(h.Notes, func(n string) bool { return strings.Contains(n, "is not used") }) {
		t.Errorf("half a list of sockets is used: %q", h.Notes)
	}
	gz := packed(t, "gz", files...)
	if got := lost(append(slices.Clone(gz), make([]byte, 1024)...)); len(got) > 0 {
		t.Errorf("zeros behind it: %q", got)
	}
	gz[len(gz)-5] ^= 1
	if got := lost(gz); len(got) != 1 || !strings.Contains(got[0], "any of its numbers may be wrong") {
		t.Errorf("a wrong checksum: %q", got)
	}
	inner := packed(t, "tar", "node/sos.tar.gz", string(packed(t, "gz", files...)[:150]), "s/sysctl", someSysctl)
	if h := readBytes(t, inner); len(h.Lost) == 0 || !strings.HasPrefix(h.Lost[len(h.Lost)-1], "node/sos.tar.gz is truncated") || last(h).Sysctls["net.netfilter.nf_conntrack_max"] != "65536" {
		t.Errorf("an archive in an archive: %q", h.Lost)
	}
}

func readBytes(t *testing.T, data []byte) *Host {
	t.Helper()
	h, err := Read(walkBytes(data), "", Options{})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// FuzzCut: an archive that ends anywhere, or has a wrong byte there, makes no panic.
func FuzzCut(f *testing.F) {
	names := []string{"tar", "gz", "xz", "zst"}
	for i := range names {
		f.Add(uint8(i), uint16(600), byte(0), someSysctl)
		f.Add(uint8(i), uint16(120), byte(0x55), someTable+someStats)
	}
	f.Fuzz(func(t *testing.T, by uint8, at uint16, flip byte, text string) {
		if len(text) > 1<<14 {
			return
		}
		data := packed(t, names[int(by)%len(names)], "a/x", text, "a/sysctl", someSysctl, "a/y", text)
		if int(at) >= len(data) {
			return
		}
		if flip == 0 {
			data = data[:at]
		}
		if flip != 0 {
			data[at] ^= flip
		}
		h, err := Read(walkBytes(data), "", Options{Budget: snapshot.NewBudget(8 << 20)})
		if err == nil && last(h).Table != nil {
			_, _ = h.EachEntry(last(h).Table, func(*conntrack.Entry) error { return nil })
		}
	})
}

// TestUTF16Inside: texts that PowerShell redirected are read within directories and archives too.
func TestUTF16Inside(t *testing.T) {
	utf := func(text string) string {
		b := []byte{0xff, 0xfe}
		for _, u := range utf16.Encode([]rune(text)) {
			b = binary.LittleEndian.AppendUint16(b, u)
		}
		return string(b)
	}
	check := func(h *Host, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		s, n := last(h), 0
		if s.Table == nil {
			t.Fatalf("no list: %q", h.Notes)
		}
		_, err = h.EachEntry(s.Table, func(*conntrack.Entry) error { n++; return nil })
		if s.Sysctls["net.netfilter.nf_conntrack_max"] != "65536" || len(s.Stats) != 2 || n != 2 || err != nil {
			t.Errorf("%d sysctls, %d CPUs, %d entries, %v", len(s.Sysctls), len(s.Stats), n, err)
		}
	}
	files := []string{"d/a.txt", utf(someSysctl), "d/b.txt", utf(someStats), "d/c.txt", utf(someTable + someTable)}
	check(Read(tree(map[string]string{files[0]: files[1], files[2]: files[3], files[4]: files[5]}), "", Options{}))
	for by := range packers {
		check(Read(walkBytes(packed(t, by, files...)), "", Options{}))
	}
	check(Read(walkBytes(packed(t, "gz", "in.tar", string(packed(t, "tar", files...)))), "", Options{}))
}
