package collect

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/anonymize"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// smallBundle needs no privilege: nothing can be read from its roots.
func smallBundle(t testing.TB) []byte {
	t.Helper()
	dir := t.TempDir()
	var file bytes.Buffer
	if _, err := WriteBundle(t.Context(), &file, RecordOptions{Options: Options{Proc: dir, Sys: dir, Kmsg: dir + "/kmsg"}}); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// TestTruncatedBundle: of a bundle that ends too early the snapshots that could be read are handed out, as they are in
// the whole one, and the error says that the rest is lost.
func TestTruncatedBundle(t *testing.T) {
	whole := smallBundle(t)
	want, err := ReadBundle(bytes.NewReader(whole), nil)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for n := 0; n < len(whole); n += 1 + len(whole)/150 {
		if rec, err := ReadBundle(bytes.NewReader(whole[:n]), nil); err == nil || rec != nil {
			t.Fatalf("%d of %d bytes were accepted as a whole bundle", n, len(whole))
		} else if !strings.Contains(err.Error(), "truncated") {
			t.Fatalf("%d of %d bytes: %v does not say truncated", n, len(whole), err)
		}
		got := 0
		err := EachRecording(bytes.NewReader(whole[:n]), nil, func(rec *snapshot.Recording) error {
			got++
			last := rec.Last()
			switch {
			case rec.NoUptime:
				kinds["a part of the first snapshot"]++
			case rec.SinceStart && last.TakenAt.Equal(want.First().TakenAt):
				kinds["one snapshot"]++
			case last.PartError(snapshot.PartTable) != want.Last().PartError(snapshot.PartTable):
				kinds["two snapshots, the second without its table"]++
			default:
				kinds["all"]++
				if d := cmp.Diff(want, rec, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); d != "" {
					t.Fatalf("%d of %d bytes read as another recording:\n%s", n, len(whole), d)
				}
			}
			for _, p := range last.Parts {
				if p.DurationSeconds < 0 {
					t.Fatalf("%d of %d bytes: %s took %g s", n, len(whole), p.Name, p.DurationSeconds)
				}
			}
			return nil
		})
		if damage := (*snapshot.DamageError)(nil); got > 1 || got > 0 && !errors.As(err, &damage) {
			t.Fatalf("%d of %d bytes: %d recordings, %v", n, len(whole), got, err)
		}
	}
	if len(kinds) != 4 {
		t.Errorf("what was read: %v", kinds)
	}
}

func TestDamagedBundleIsAnError(t *testing.T) {
	whole := smallBundle(t)
	want, err := ReadBundle(bytes.NewReader(whole), nil)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for at := 10; at < len(whole); at += 7 {
		damaged := bytes.Clone(whole)
		damaged[at] ^= 0x55
		got, err := ReadBundle(bytes.NewReader(damaged), nil)
		if err != nil {
			refused++
		} else if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); d != "" {
			// Some bits of a deflate stream mean nothing; then nothing may change.
			t.Errorf("with byte %d changed it reads as another recording:\n%s", at, d)
		}
	}
	if refused == 0 {
		t.Error("no damage was noticed")
	}
}

// archive makes a tar.gz of members.
func archive(t testing.TB, members ...tar.Header) []byte {
	t.Helper()
	var file bytes.Buffer
	gz := gzip.NewWriter(&file)
	tw := tar.NewWriter(gz)
	for _, h := range members {
		// The text of a member travels in its Uname.
		text := h.Uname
		h.Uname = ""
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Size == 0 && h.Typeflag == tar.TypeReg {
			h.Size = int64(len(text))
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, text); err != nil {
			t.Fatal(err)
		}
	}
	gz.Close()
	return file.Bytes()
}

// twoSnapshots is a bundle of the first form with a member in each of two snapshots, and their heads.
func twoSnapshots(t *testing.T, a, b tar.Header, headA, headB string) []byte {
	t.Helper()
	a.Name, b.Name = "0/"+a.Name, "1/"+b.Name
	return archive(t, tar.Header{Name: "natkit-bundle.json", Uname: `{"schema":"natkit.bundle/1"}`},
		a, tar.Header{Name: "0/head.json", Uname: headA}, tar.Header{Name: "0/tail.json", Uname: "{}"},
		b, tar.Header{Name: "1/head.json", Uname: headB}, tar.Header{Name: "1/tail.json", Uname: "{}"},
		tar.Header{Name: "end.json", Uname: `{"members":7}`})
}

// recordings is a bundle with recordings of these numbers; -1 is one of the next number that ends after its first
// snapshot.
func recordings(t testing.TB, numbers ...int) []byte {
	t.Helper()
	var file bytes.Buffer
	b, err := snapshot.NewBundleWriter(&file, snapshot.BundleHeader{})
	for i, n := range numbers {
		snapshots := []string{"0", "1"}
		if n < 0 {
			n, snapshots = i, snapshots[:1]
		}
		for _, s := range snapshots {
			folder := fmt.Sprintf("%d/%s/", n, s)
			err = errors.Join(err, b.Add(folder+headName, []byte(fmt.Sprintf(`{"machine":{"netns":{"inode":%d}},"owner":{"netns":"n%d"}}`, n+1, n))), b.Add(folder+tailName, []byte("{}")))
		}
	}
	if err := errors.Join(err, b.Close()); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

func TestSeveralRecordings(t *testing.T) {
	inodes := func(file []byte) (all []uint64) {
		t.Helper()
		err := EachRecording(bytes.NewReader(file), nil, func(rec *snapshot.Recording) error {
			all = append(all, rec.Last().Netns.Inode)
			if rec.Owner == nil || rec.Owner.Netns != fmt.Sprintf("n%d", rec.Last().Netns.Inode-1) {
				t.Errorf("owner %+v of %d", rec.Owner, rec.Last().Netns.Inode)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	three := recordings(t, 0, 1, 2)
	if d := cmp.Diff([]uint64{1, 2, 3}, inodes(three)); d != "" {
		t.Error(d)
	}
	if rec, err := ReadBundle(bytes.NewReader(three), nil); err != nil || rec.Last().Netns.Inode != 1 {
		t.Errorf("the first is %+v, %v", rec, err)
	}
	var joined bytes.Buffer
	b, err := NewBundle(&joined, BundleOptions{})
	err = errors.Join(err, b.Append(bytes.NewReader(recordings(t, 0, 1))), b.Append(bytes.NewReader(smallBundle(t))), b.Close())
	if err != nil {
		t.Fatal(err)
	}
	listed, err := List(&joined, nil)
	if err != nil || len(listed.Recordings) != 3 || listed.Recordings[1].Netns.Inode != 2 || listed.Recordings[2].Owner != nil {
		t.Fatalf("%+v, %v", listed, err)
	}
	for i, r := range listed.Recordings {
		if len(r.Snapshots) != 2 || len(r.Snapshots[1].Members) < 2 || (r.Result > 0) != (i == 2) {
			t.Errorf("recording %d: %+v", i, r)
		}
	}
	if parts := listed.Recordings[2].Snapshots[0].Parts; len(parts) < 10 {
		t.Errorf("%d parts", len(parts))
	}
	stop := errors.New("enough")
	if err := EachRecording(bytes.NewReader(three), nil, func(*snapshot.Recording) error { return stop }); err != stop {
		t.Errorf("stopped with %v", err)
	}
}

// TestBudgetOfRecordings: each has the whole of it, as one is read after the other.
func TestBudgetOfRecordings(t *testing.T) {
	var file bytes.Buffer
	b, err := snapshot.NewBundleWriter(&file, snapshot.BundleHeader{})
	for n := range 5 {
		for s := range 2 {
			at := place{n, s}
			err = errors.Join(err, b.Add(at.member("files/x"), make([]byte, 1<<20)), b.Add(at.member(headName), []byte("{}")), b.Add(at.member(tailName), []byte("{}")))
		}
	}
	if err := errors.Join(err, b.Close()); err != nil {
		t.Fatal(err)
	}
	for most, want := range map[int64]error{4 << 20: nil, 2 << 20: snapshot.ErrBudget} {
		if err := EachRecording(bytes.NewReader(file.Bytes()), snapshot.NewBudget(most), func(*snapshot.Recording) error { return nil }); !errors.Is(err, want) {
			t.Errorf("with %d bytes: %v, want %v", most, err, want)
		}
	}
}

func TestHostileBundles(t *testing.T) {
	first := tar.Header{Name: "natkit-bundle.json", Uname: `{"schema":"natkit.bundle/1"}`}
	second := tar.Header{Name: "natkit-bundle.json", Uname: `{"schema":"natkit.bundle/2"}`}
	head := tar.Header{Name: "0/head.json", Uname: "{}"}
	tests := []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "truncated"},
		{"no gzip", []byte("this is no bundle at all"), "not written by natkit"},
		{"gzip of something", archive(t, tar.Header{Name: "etc/passwd", Uname: "root"}), "not written by natkit"},
		{"a later form", archive(t, tar.Header{Name: "natkit-bundle.json", Uname: `{"schema":"natkit.bundle/9","written_by":"v3.1"}`}), `"natkit.bundle/9", and this natkit reads natkit.bundle/1 and natkit.bundle/2: use natkit "v3.1" or later`},
		{"a later form of nobody", archive(t, tar.Header{Name: "natkit-bundle.json", Uname: `{"schema":"natkit.bundle/9"}`}), "use the natkit that wrote it"},
		{"no form", archive(t, tar.Header{Name: "natkit-bundle.json", Uname: `{}`}), "its form is"},
		{"snapshots of two boots", twoSnapshots(t, tar.Header{Name: "files/proc/sys/kernel/random/boot_id", Uname: "a"}, tar.Header{Name: "files/proc/sys/kernel/random/boot_id", Uname: "b"}, "{}", "{}"), "two boots"},
		{"snapshots of two namespaces", twoSnapshots(t, tar.Header{Name: "files/x"}, tar.Header{Name: "files/x"}, `{"machine":{"netns":{"inode":1}}}`, `{"machine":{"netns":{"inode":2}}}`), "two network namespaces"},
		{"snapshots in the wrong order", twoSnapshots(t, tar.Header{Name: "files/x"}, tar.Header{Name: "files/x"}, `{"clocks":{"snapshot":{"uptime_seconds":2}}}`, `{"clocks":{"snapshot":{"uptime_seconds":1}}}`), "seconds apart"},
		{"a recording without a number", archive(t, second, tar.Header{Name: "x/0/head.json", Uname: "{}"}), "was due"},
		{"a recording of another number", archive(t, second, tar.Header{Name: "1/0/head.json", Uname: "{}"}), "was due"},
		{"a recording that is not there", recordings(t, 0, 2), "was due"},
		{"a recording without its end", recordings(t, 0, 1, -1), "it ends before"},
		{"a link", archive(t, first, tar.Header{Name: "0/files/proc/meminfo", Typeflag: tar.TypeSymlink, Linkname: "/etc/shadow"}), "not a plain file"},
		{"a huge member", archive(t, first, tar.Header{Name: "0/files/x", Size: 1 << 40}), "more than"},
		{"another folder", archive(t, first, tar.Header{Name: "../../etc/x", Uname: "x"}), "was due"},
		{"head that is no JSON", archive(t, first, tar.Header{Name: "0/head.json", Uname: "{"}), "head.json"},
		{"head that is too deep", archive(t, first, tar.Header{Name: "0/head.json", Uname: strings.Repeat("[", snapshot.MemberMax)}), "head.json"},
		{"table without end", archive(t, first, head, tar.Header{Name: "0/table/000000", Uname: "\x00\x00\x00\x00"}), "truncated"},
		{"something in the table", archive(t, first, head, tar.Header{Name: "0/other", Uname: "x"}), "in a table"},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			rec, err := ReadBundle(bytes.NewReader(c.file), nil)
			if err == nil || rec != nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("ReadBundle = %v, %v; want an error that says %q", rec, err, c.want)
			}
		})
	}
}

// What keeps a file from being read says nothing about who wrote it; and no error has the
// names of Go types.
func TestWhyABundleIsNotRead(t *testing.T) {
	first := tar.Header{Name: "natkit-bundle.json", Uname: `{"schema":"natkit.bundle/1"}`}
	_, isFolder := os.ReadFile(t.TempDir())
	for want, in := range map[string]struct {
		file   io.Reader
		budget *snapshot.Budget
	}{
		"interrupted":  {iotest.ErrReader(context.Canceled), nil},
		"is a folder":  {iotest.ErrReader(isFolder), nil},
		"more memory":  {bytes.NewReader(archive(t, first)), snapshot.NewBudget(1)},
		"does not fit": {bytes.NewReader(archive(t, first, tar.Header{Name: "0/head.json", Uname: `{"struct_sizes":{"x":"y"}}`})), nil},
	} {
		_, err := ReadBundle(in.file, in.budget)
		if err == nil || strings.Contains(err.Error(), "not written by") || strings.Contains(err.Error(), "Go ") {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestBundleOfManyFilesIsBounded(t *testing.T) {
	pr, pw := io.Pipe()
	go func() {
		b, err := snapshot.NewBundleWriter(pw, snapshot.BundleHeader{TakenAt: time.Time{}})
		data := make([]byte, snapshot.MemberMax)
		for err == nil {
			err = b.Add("0/0/files/x", data)
		}
		pw.CloseWithError(err)
	}()
	_, err := ReadBundle(pr, nil)
	pr.Close()
	if !errors.Is(err, snapshot.ErrBudget) && (err == nil || !strings.Contains(err.Error(), "before 0/0/head.json")) {
		t.Errorf("ReadBundle = %v", err)
	}
}

func TestBundleKeepsWhyNothingCouldBeRead(t *testing.T) {
	rec, err := ReadBundle(bytes.NewReader(smallBundle(t)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if why := rec.Last().PartError("memory"); !strings.Contains(why, "/proc/meminfo: no such file or directory") {
		t.Errorf("memory: %q", why)
	}
}

// brokenWriter fails after some bytes, as a full disk does.
type brokenWriter struct{ left int }

var errDiskFull = errors.New("no space left on device")

func (b *brokenWriter) Write(p []byte) (int, error) {
	if len(p) > b.left {
		return 0, errDiskFull
	}
	b.left -= len(p)
	return len(p), nil
}

func TestWriteBundleToAFullDisk(t *testing.T) {
	// Bundles differ in their times, and by that a little in length.
	size := len(smallBundle(t))
	dir := t.TempDir()
	for left := 0; left < size*9/10; left += 100 {
		_, err := WriteBundle(t.Context(), &brokenWriter{left}, RecordOptions{Options: Options{Proc: dir, Sys: dir, Kmsg: dir + "/kmsg"}})
		if !errors.Is(err, errDiskFull) {
			t.Fatalf("after %d bytes of %d: %v", left, size, err)
		}
	}
}

// TestBundleIsBounded: a few kilobytes that would become gigabytes are an error that
// names the member, whatever part of the bundle they are in.
func TestBundleIsBounded(t *testing.T) {
	many := func(before, item, after string) string {
		return before + strings.Repeat(item+",", snapshot.MemberMax/4/len(item)) + item + after
	}
	first := tar.Header{Name: "natkit-bundle.json", Uname: `{"schema":"natkit.bundle/1"}`}
	whole := func(members ...tar.Header) []byte {
		all := []tar.Header{first}
		for _, folder := range []string{"0", "1"} {
			for _, m := range append(members, tar.Header{Name: "head.json", Uname: "{}"}, tar.Header{Name: "tail.json", Uname: "{}"}) {
				m.Name = folder + "/" + m.Name
				all = append(all, m)
			}
		}
		return archive(t, append(all, tar.Header{Name: "end.json", Uname: fmt.Sprintf(`{"members":%d}`, len(all))})...)
	}
	if _, err := ReadBundle(bytes.NewReader(whole(tar.Header{Name: "nat_rules.json", Uname: `{"rules":[{"unless":[{}]}]}`})), nil); err != nil {
		t.Fatal(err)
	}
	for _, m := range []tar.Header{
		{Name: "nat_rules.json", Uname: many(`{"rules":[`, `{}`, `]}`)},
		{Name: "nat_rules.json", Uname: many(`{"RULES":[{"unless":[`, `{}`, `]}]}`)},
		{Name: "trace.json", Uname: many(`{"drops":{"flows":[`, `{}`, `]}}`)},
		{Name: "trace.json", Uname: many(`{"profile":{"functions":[`, `{}`, `]}}`)},
		{Name: "head.json", Uname: many(`{"cut":[`, `""`, `]}`)},
		{Name: "files/proc/meminfo", Uname: strings.Repeat("x", snapshot.MemberMax)},
	} {
		t.Run(m.Name, func(t *testing.T) {
			file := whole(m)
			defer testutil.Bounded(t, 150_000)() // some 300 MB
			rec, err := ReadBundle(bytes.NewReader(file), snapshot.NewBudget(24<<20))
			if rec != nil || !errors.Is(err, snapshot.ErrBudget) || !strings.Contains(err.Error(), m.Name) {
				t.Errorf("%d bytes: %v", len(file), err)
			}
		})
		t.Run("anonymize "+m.Name, func(t *testing.T) {
			file := whole(m)
			defer testutil.Bounded(t, 600_000)() // one member after the other has some 256 MB
			if err := Rewrite(io.Discard, bytes.NewReader(file), BundleOptions{Anonymize: anonymize.New(anonymize.Key{})}); err != nil && !errors.Is(err, snapshot.ErrBudget) {
				t.Error(err)
			}
		})
	}
}

// FuzzReadBundle changes members, as the checksum of the whole keeps most other changes
// from being read.
func FuzzReadBundle(f *testing.F) {
	f.Add("nat_rules.json", []byte(`{"rules":[{"kind":"snat","unless":[{}]}]}`), []byte("{}"))
	f.Add("trace.json", []byte(`{"drops":{"seconds":1,"sites":[{"function":"f","packets":1}]},"parts":[{"name":"drops"}]}`), []byte("{}"))
	f.Add("files/proc/meminfo", []byte("MemTotal: 16 kB\n"), []byte(`{"machine":{"arch":"x86_64","page_bytes":4096},"failures":{"machine":{"error":"no"}},"struct_sizes":{"nf_conn":320}}`))
	f.Add("files/proc/slabinfo", []byte("slabinfo - version: 2.1\nnf_conntrack 1 2 320 25 2 : tunables 0 0 0 : slabdata 1 1 0\n"), []byte("{}"))
	f.Add("files/proc/self/mountinfo", []byte("22 1 0:20 / /proc rw - proc proc rw\n"), []byte("{}"))
	f.Add("files/proc/stat", []byte("cpu 1 2 3 4 5 6 7 8 9 10\nbtime 1\n"), []byte("{}"))
	f.Add("kmsg.txt", []byte("4,1,1,-;nf_conntrack: table full\n"), []byte(`{"kernel_log_next":2}`))
	f.Add("counters.bin", []byte{20, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0}, []byte("{}"))
	f.Add("ipvs_timeouts.json", []byte(`{}`), []byte(`{"lists":{"list /proc/net/":["a"]}}`))
	f.Fuzz(func(t *testing.T, name string, data, head []byte) {
		defer testutil.Bounded(t, 10_000+4*len(name)+20*(len(data)+len(head)))()
		var file bytes.Buffer
		b, err := snapshot.NewBundleWriter(&file, snapshot.BundleHeader{TakenAt: time.Unix(0, 0)})
		for _, folder := range []string{"0/0/", "0/1/", "1/0/", "1/1/"} {
			err = errors.Join(err, b.Add(folder+name, data), b.Add(folder+headName, head), b.Add(folder+tableFolder+"/0", data), b.Add(folder+tailName, []byte("{}")))
		}
		if errors.Join(err, b.Close()) != nil {
			t.Skip()
		}
		readable := func(file []byte) bool {
			n := 0
			err := EachRecording(bytes.NewReader(file), nil, func(rec *snapshot.Recording) error {
				if n++; len(rec.Snapshots) != 2 {
					t.Errorf("a recording of %d snapshots", len(rec.Snapshots))
				}
				return nil
			})
			if err == nil && n != 2 {
				t.Errorf("%d recordings", n)
			}
			return err == nil
		}
		// What cannot be anonymized is refused; the rest can be read if it could be before.
		var anonymized bytes.Buffer
		was := readable(file.Bytes())
		if Rewrite(&anonymized, &file, BundleOptions{Anonymize: anonymize.New(anonymize.Key{})}) == nil && was && !readable(anonymized.Bytes()) {
			t.Error("it cannot be read any more once it is anonymized")
		}
	})
}

// TestManySnapshots: a recording has as many as were asked for, each compared with the one
// before, and so has its bundle; one that is ended has two.
func TestManySnapshots(t *testing.T) {
	o := RecordOptions{Options: Options{Proc: balancerProc(t, someConnections(5, 60)), Sys: t.TempDir(), Kmsg: "/nonexistent"}, Snapshots: 4, For: time.Millisecond}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	for ctx, want := range map[context.Context]int{t.Context(): 4, stopped: 2} {
		traces := 0
		o.Trace = func(context.Context, *snapshot.Snapshot) func() snapshot.Trace {
			traces++
			return func() snapshot.Trace { return snapshot.Trace{Parts: []snapshot.Part{{Name: snapshot.PartDrops}}} }
		}
		var file bytes.Buffer
		wrote, err := WriteBundle(ctx, &file, o)
		if err != nil {
			t.Fatal(err)
		}
		read, err := ReadBundle(&file, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(wrote.Snapshots) != want || traces != want-1 {
			t.Errorf("%d snapshots, %d traces, want %d", len(wrote.Snapshots), traces, want)
		}
		if d := cmp.Diff(wrote.Snapshots, read.Snapshots, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})); d != "" {
			t.Errorf("(-written +read):\n%s", d)
		}
		if cut := map[bool]float64{true: o.For.Seconds()}[ctx == stopped]; wrote.CutShortOf != cut || read.CutShortOf != cut {
			t.Errorf("cut short of %v s, read back %v s, want %v", wrote.CutShortOf, read.CutShortOf, cut)
		}
		for i, s := range read.Snapshots {
			if tried, _ := s.Traced(snapshot.PartDrops); tried != (i > 0) || s.IPVS.Connections.Compared != map[bool]int64{true: 5}[i > 0] {
				t.Errorf("snapshot %d: traced %v, %+v", i, tried, s.IPVS.Connections)
			}
		}
	}
}

// TestLargeTable: a table of any size passes through the reader; its members are not kept, and take one's memory alone.
func TestLargeTable(t *testing.T) {
	var file bytes.Buffer
	b, err := snapshot.NewBundleWriter(&file, snapshot.BundleHeader{TakenAt: time.Unix(0, 0)})
	chunk := make([]byte, chunkBytes)
	for _, folder := range []string{"0/0/", "0/1/"} {
		err = errors.Join(err, b.Add(folder+headName, []byte("{}")))
		for i := range 24 {
			err = errors.Join(err, b.Add(fmt.Sprintf("%s%s/%06d", folder, tableFolder, i), chunk))
		}
		err = errors.Join(err, b.Add(folder+tailName, []byte("{}")))
	}
	if err := errors.Join(err, b.Close()); err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := EachRecording(&file, snapshot.NewBudget(8<<20), func(*snapshot.Recording) error { n++; return nil }); err != nil || n != 1 {
		t.Errorf("%d recordings, %v", n, err)
	}
}
