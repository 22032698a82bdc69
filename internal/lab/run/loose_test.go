package run

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/loose"
	"github.com/natkit/natkit/internal/netns"
)

// looseTexts are what other programs printed in the stage with the fault, as an operator collects it.
const looseTexts = "testdata/loose"

// looseMax bounds one of them, in bytes; larger ones are compared when they are taken, and not kept.
const looseMax = 120_000

// collected are the commands of docs/other-data.md, by the file that each is written to.
var collected = [][2]string{
	{"uptime", "cat /proc/uptime"}, {"date", "date -Ins"},
	{"conntrack-S", "conntrack -S"},
	{"snmp", "cat /proc/net/snmp"}, {"netstat", "cat /proc/net/netstat"}, {"snmp6", "cat /proc/net/snmp6"}, {"xfrm_stat", "cat /proc/net/xfrm_stat"},
	{"ss-s", "ss -s"}, {"softnet_stat", "cat /proc/net/softnet_stat"}, {"arp_cache", "cat /proc/net/stat/arp_cache"}, {"ndisc_cache", "cat /proc/net/stat/ndisc_cache"},
	{"netlink", "cat /proc/net/netlink"},
	{"ip-link", "ip -s -d link"}, {"tc", "tc -s qdisc"},
	{"sysctl", "sysctl -a"},
	{"dmesg", "dmesg"},
	{"conntrack-L", "conntrack -L -o extended,id"},
	{"ip-addr", "ip -d addr"}, {"ip-route", "ip route show table all"}, {"ip-6-route", "ip -6 route show table all"},
	{"ip-rule", "ip rule"}, {"ip-6-rule", "ip -6 rule"}, {"ip-neigh", "ip -s neigh"}, {"ip-6-proxy", "ip -6 neigh show proxy"},
	{"ss_-tuna", "ss -tuna"},
	{"iptables-save", "iptables-save -c"}, {"ip6tables-save", "ip6tables-save -c"}, {"nft", "nft -a list ruleset"},
	{"uname", "uname -a"}, {"slabinfo", "cat /proc/slabinfo"}, {"meminfo", "cat /proc/meminfo"}, {"netns", "readlink /proc/self/ns/net"},
}

// collectLoose runs the commands in a namespace and writes what they print into a directory.
func collectLoose(dir string, ns *netns.Handle) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var script strings.Builder
	script.WriteString("cd " + dir + "\n")
	for _, c := range collected {
		fmt.Fprintf(&script, "%s > %s 2>/dev/null\n", c[1], c[0])
	}
	file, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()))
	if err != nil {
		return err
	}
	defer file.Close()
	cmd := exec.Command("nsenter", "--net=/proc/self/fd/3", "sh")
	cmd.ExtraFiles = []*os.File{file}
	cmd.Stdin = strings.NewReader(script.String())
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) > 0 {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// kept is what a live doctor found in the stage that the texts are of.
type keptLoose struct {
	Findings []string `json:"findings"`
}

// byTrace are the scenarios in which doctor finds something only because it follows packets, which no text can have.
var byTrace = map[string]string{
	"drops-unexplained": "service-unanswered", // what a program drops, which is in no rule
	"forwarding-off":    "service-unanswered", // no packet is translated, so that no entry is unanswered
}

// notInTexts are the findings that texts cannot show, each with the reason.
var notInTexts = map[string]string{
	"drops-unexplained":    "the kernel counts most drops nowhere: doctor traces them",
	"tw-seq-reject":        "no counter shows it: doctor captures the SYNs",
	"ebpf-detached":        "no program prints which of natkit's eBPF programs are attached, and which are to be",
	"ebpf-no-xdp":          "no program prints which of natkit's eBPF programs are attached, and which are to be",
	"ebpf-bypassed-filter": "no program prints what natkit's eBPF programs translate; the filter that they bypass is then a finding of its own",
}

// insteadOf are findings that texts have where live there is another one, as what they lack is the reason for that.
var insteadOf = map[string]string{"ebpf-bypassed-filter": "dnat-filtered"}

// TestLooseTexts: the texts of each scenario, as other programs printed them, give what doctor found live.
func TestLooseTexts(t *testing.T) {
	files, err := filepath.Glob(looseTexts + "/*.tar.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".tar.gz"), func(t *testing.T) {
			walk := func(fn func(*loose.File) error) error {
				f, err := os.Open(file)
				if err != nil {
					return err
				}
				defer f.Close()
				return loose.Archive(&loose.File{Name: file, Reader: f}, fn)
			}
			var was keptLoose
			err := walk(func(f *loose.File) error {
				if f.Name != "live.json" {
					return nil
				}
				return json.NewDecoder(f.Reader).Decode(&was)
			})
			if err != nil {
				t.Fatal(err)
			}
			sc, err := lab.Find(strings.TrimSuffix(filepath.Base(file), ".tar.gz"))
			if err != nil {
				t.Fatal(err)
			}
			compareLoose(t, sc, was.Findings, walk)
		})
	}
}

func compareLoose(t *testing.T, sc *lab.Scenario, live []string, walk loose.Walk) {
	t.Helper()
	rec, err := collect.ReadLoose(walk, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	report := diagnose.Run(rec, diagnose.Rules())
	found := report.IDs()
	// What texts may lack they may not make up either.
	possible := func(ids []string) []string {
		ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
			missable := notInTexts[id] != "" || byTrace[sc.Name] == id
			return missable && !slices.Contains(found, id)
		})
		slices.Sort(ids)
		return ids
	}
	for id, other := range insteadOf {
		if slices.Contains(live, id) {
			found = slices.DeleteFunc(found, func(f string) bool { return f == other })
		}
	}
	if diff := cmp.Diff(possible(live), possible(found)); diff != "" {
		t.Errorf("(-live +texts):\n%s", diff)
		for _, c := range report.Checks {
			if slices.Contains(live, c.ID) && c.State != diagnose.Found {
				t.Logf("%s: %v: %s", c.ID, c.State, c.Why)
			}
		}
		for _, u := range report.Unread {
			t.Logf("unread %s: %s", u.What, u.Why)
		}
	}
}

// TestUpdateLoose runs the scenarios and keeps what other programs print there.
func TestUpdateLoose(t *testing.T) { updating(t, updateLoose) }

func updateLoose(t *testing.T, sc *lab.Scenario) {
	var mutex sync.Mutex
	dirs := map[string]string{}
	o := options(t)
	o.Server, o.AllowHost = build.Auto, true
	o.Beside = func(stage string, ns *netns.Handle) func(string) {
		mutex.Lock()
		defer mutex.Unlock()
		dir := t.TempDir()
		dirs[stage] = dir
		n := 0
		return func(what string) {
			if !strings.HasPrefix(what, "reading the kernel") {
				return
			}
			if err := collectLoose(filepath.Join(dir, fmt.Sprint(n)), ns); err != nil {
				t.Error(err)
			}
			n++
		}
	}
	r, err := Run(t.Context(), sc, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range r.Stages {
		dir := dirs[st.Name]
		if dir == "" || !sc.Healthy() && !slices.Contains(st.Found, sc.Expect.Finding) {
			continue
		}
		out := packLoose(t, dir, st.Found)
		compareLoose(t, sc, st.Found, func(fn func(*loose.File) error) error {
			return loose.Archive(&loose.File{Name: "x", Reader: bytes.NewReader(out)}, fn)
		})
		if len(out) > looseMax {
			t.Logf("%d bytes are too many to keep", len(out))
			return
		}
		if err := os.WriteFile(filepath.Join(looseTexts, sc.Name+".tar.gz"), out, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("doctor found %s in no stage: %+v", sc.Expect.Finding, r.Findings)
}

// unneeded are lines of texts that natkit does not read, or that are of the machine.
var unneeded = map[string]*regexp.Regexp{
	"slabinfo": regexp.MustCompile(`(?m)^(?:[^nk#s\n]|n[^f]|k[^m]|s[^l])[^\n]*\n`),
	"dmesg":    regexp.MustCompile(`(?m)^.*(?:Command line|BIOS|ACPI|pci|usb|e820|PM:|clocksource|microcode|Linux version).*\n`),
	"sysctl":   regexp.MustCompile(`(?m)^(?:kernel|vm|dev|debug|fs|user|abi|crypto|sunrpc)\..*\n`),
}

func packLoose(t *testing.T, dir string, found []string) []byte {
	t.Helper()
	var out bytes.Buffer
	gz, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(gz)
	add := func(name string, at time.Time, data []byte) {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: at, Format: tar.FormatPAX}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(w, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
	}
	live, err := json.Marshal(keptLoose{found})
	if err != nil {
		t.Fatal(err)
	}
	add("live.json", time.Unix(0, 0), live)
	files, err := filepath.Glob(dir + "/*/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		info, statErr := os.Stat(file)
		if err := errors.Join(err, statErr); err != nil {
			t.Fatal(err)
		}
		if cut := unneeded[filepath.Base(file)]; cut != nil {
			data = cut.ReplaceAll(data, nil)
		}
		if name, _ := filepath.Rel(dir, file); err == nil {
			add(name, info.ModTime(), data)
		}
	}
	if err := errors.Join(w.Close(), gz.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
