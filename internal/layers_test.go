// Package internal_test holds the rules that concern the source tree as a whole.
package internal_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "github.com/natkit/natkit"

// layer orders the packages; imports go from a later layer to the same or an
// earlier one.
type layer int

const (
	data    layer = iota // plain structs
	pure                 // computes; the kernel, the clock and the disk reach it as arguments
	kernel               // reads and changes the machine
	conduct              // combines the above into runs
	front                // command lines and programs
)

var layerNames = map[layer]string{data: "data", pure: "pure", kernel: "kernel", conduct: "conduct", front: "front"}

func (l layer) String() string { return layerNames[l] }

// layers has every package of the module. The child of a pure package that
// touches the kernel has a row of its own.
var layers = map[string]layer{
	"internal/nat":      data,
	"internal/snapshot": data,
	"internal/unix":     data,

	"internal/anonymize":           pure,
	"internal/capacity":            pure,
	"internal/conntrack":           pure,
	"internal/conntrack/aggregate": pure,
	"internal/conntrack/text":      pure,
	"internal/diagnose":            pure,
	"internal/diff":                pure,
	"internal/document":            pure,
	"internal/gateway":             pure,
	"internal/gateway/convert":     pure,
	"internal/gateway/health":      pure,
	"internal/gateway/observe":     pure,
	"internal/gateway/pcp":         pure,
	"internal/lab":                 pure,
	"internal/load":                pure,
	"internal/metrics":             pure,
	"internal/state":               pure,
	"internal/lazyregexp":          pure,
	"internal/loose":               pure,
	"internal/names":               pure,
	"internal/natlog":              pure,
	"internal/netlink":             pure,
	"internal/fleet":               pure,
	"internal/frame":               pure,
	"internal/load/packets":        pure,
	"internal/load/rfc9693":        pure,
	"internal/pcap":                pure,
	"internal/pcap/pair":           pure,
	"internal/plan":                pure,
	"internal/ports":               pure,
	"internal/profile":             pure,
	"internal/report":              pure,
	"internal/ring":                pure,
	"internal/ruleset":             pure,
	"internal/simulate":            pure,
	"internal/table":               pure,
	"internal/tune":                pure,
	"internal/units":               pure,

	"internal/collect":                  kernel,
	"internal/conntrack/dump":           kernel,
	"internal/disk":                     kernel,
	"internal/gateway/engine":           kernel,
	"internal/gateway/engine/ebpf":      kernel,
	"internal/gateway/engine/fake":      kernel,
	"internal/gateway/engine/netfilter": kernel,
	"internal/gateway/host":             kernel,
	"internal/lab/build":                kernel,
	"internal/load/run":                 kernel,
	"internal/load/rfc9693/trial":       kernel,
	"internal/ruleset/edit":             kernel,
	"internal/ruleset/read":             kernel,
	"internal/names/read":               kernel,
	"internal/netlink/socket":           kernel,
	"internal/natlog/files":             kernel,
	"internal/natlog/send":              kernel,
	"internal/natlog/source":            kernel,
	"internal/netns":                    kernel,
	"internal/permit":                   kernel,
	"internal/syn":                      kernel,
	"internal/table/store":              kernel,
	"internal/tap":                      kernel,
	"internal/follow":                   kernel,
	"internal/testutil":                 kernel,
	"internal/tune/apply":               kernel,
	"internal/watch":                    kernel,
	"internal/tune/journal":             kernel,

	"internal/doctor":            conduct,
	"internal/exporter":          conduct,
	"internal/gateway/behaviour": conduct,
	"internal/gateway/look":      conduct,
	"internal/gateway/apply":     conduct,
	"internal/lab/run":           conduct,
	"internal/record":            conduct,
	"internal/tui":               conduct,
	"internal/web":               conduct,

	"cmd/natkit":   front,
	"internal/cli": front,
}

// testsOnly are packages for tests, and why the product must not import them.
var testsOnly = map[string]string{
	"internal/testutil":            "it carries package testing into the product",
	"internal/gateway/engine/fake": "it does nothing to packets",
}

// engines are the packages that carry out plans of gateways.
var engines = map[string]bool{"internal/gateway/engine/ebpf": true, "internal/gateway/engine/netfilter": true}

// apart are packages that must not import others, themselves or what is below them, and
// why. Names stand for the packages below them as well.
var apart = map[string]struct {
	from   []string
	reason string
}{
	"internal/tune": {[]string{"internal/gateway", "internal/ruleset", "internal/lab"}, "appliers of other kinds are handed in, so that a change of any kind is journaled and undone by the same code"},
}

// dataImports are the only packages of ours that a data package may import: the constants of the kernel, and the
// vocabulary of translation, which imports no other.
var dataImports = []string{"internal/nat", "internal/unix"}

// forbidden says what a data or pure package must not import, and why. A name
// that ends in a slash stands for all below it.
var forbidden = map[string]string{
	"os":                              "files and the environment are read by the kernel layer and passed in, so that a bundle from another machine gives the same answer",
	"os/exec":                         "a pure package starts no program",
	"syscall":                         "system calls belong to the kernel layer; constants of the kernel's interface are in internal/unix",
	"golang.org/x/sys/unix":           "its constants are those of the system that natkit is built for, and natkit reads on macOS and Windows what Linux wrote: internal/unix has Linux' own",
	"github.com/mdlayher/netlink":     "netlink sockets belong to the kernel layer; decoding works on bytes",
	"github.com/mdlayher/netlink/":    "netlink sockets belong to the kernel layer; decoding works on bytes",
	"github.com/vishvananda/netlink":  "links and routes are made by the kernel layer",
	"github.com/vishvananda/netlink/": "links and routes are made by the kernel layer",
	"github.com/vishvananda/netns":    "namespaces are entered by the kernel layer",
	"github.com/google/nftables":      "rules are loaded by the kernel layer",
	"github.com/google/nftables/":     "rules are loaded by the kernel layer",
	"github.com/cilium/ebpf":          "programs are loaded by the kernel layer",
	"github.com/cilium/ebpf/":         "programs are loaded by the kernel layer",
}

// allowedUses says what alone a data or pure package may use of a package whose
// rest is forbidden, and why.
var allowedUses = map[string]struct {
	names  *regexp.Regexp
	reason string
}{
	"net": {regexp.MustCompile(`^(HardwareAddr|ParseMAC)$`),
		"sockets belong to the kernel layer; net/netip has the address types"},
}

// forbiddenCalls says what a data or pure package must not use of a package that
// it may import, and why.
var forbiddenCalls = map[string]string{
	"time.Now":       "the clock is passed in, so that a recording is judged by its own time",
	"time.Since":     "the clock is passed in, so that a recording is judged by its own time",
	"time.Until":     "the clock is passed in, so that a recording is judged by its own time",
	"time.Sleep":     "a pure package does not wait",
	"time.After":     "a pure package does not wait",
	"time.NewTimer":  "a pure package does not wait",
	"time.NewTicker": "a pure package does not wait",
}

// pkg is the part of `go list`'s output for one package that the rules need.
type pkg struct {
	ImportPath   string
	Dir          string
	GoFiles      []string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func (p pkg) path() string { return strings.TrimPrefix(p.ImportPath, module+"/") }

func TestLayers(t *testing.T) {
	pkgs := listPackages(t)
	if len(pkgs) < 10 {
		t.Fatalf("go list found only %d packages", len(pkgs))
	}
	for _, p := range pkgs {
		for _, problem := range checkImports(p) {
			t.Error(problem)
		}
		for _, problem := range checkCalls(t, p) {
			t.Error(problem)
		}
	}
}

func listPackages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatalf("decode go list: %v", err)
		}
		if len(p.GoFiles) > 0 { // this directory has tests only
			pkgs = append(pkgs, p)
		}
	}
}

// checkImports returns what is wrong with a package's imports.
func checkImports(p pkg) []string {
	from, known := layerOf(p.path())
	if !known {
		return []string{fmt.Sprintf("%s has no layer: give it one in internal/layers_test.go (and ask which one it is before it grows)", p.path())}
	}
	var problems []string
	for _, imp := range p.Imports {
		if imp == "syscall" && p.path() == "internal/unix" {
			continue // for its Errno
		}
		if ours, ok := strings.CutPrefix(imp, module+"/"); ok {
			problems = append(problems, checkDirection(p.path(), from, ours)...)
		} else if reason := whyForbidden(imp); from <= pure && reason != "" {
			problems = append(problems, fmt.Sprintf("%s (%v) imports %s: %s", p.path(), from, imp, reason))
		}
	}
	return problems
}

func checkDirection(path string, from layer, imported string) []string {
	if reason := testsOnly[imported]; reason != "" {
		return []string{fmt.Sprintf("%s imports %s outside of its tests: %s", path, imported, reason)}
	}
	if engines[imported] && path != "internal/gateway/engine" {
		return []string{fmt.Sprintf("%s imports %s: engines are reached through internal/gateway/engine, so that a file may name another one", path, imported)}
	}
	for name, rule := range apart {
		if within(path, name) && slices.ContainsFunc(rule.from, func(other string) bool { return within(imported, other) }) {
			return []string{fmt.Sprintf("%s imports %s: %s", path, imported, rule.reason)}
		}
	}
	to, known := layerOf(imported)
	switch {
	case !known: // reported where the imported package itself is checked
	case isTool(imported) && !isTool(path):
		return []string{fmt.Sprintf("%s imports %s: tools are programs for developers, not part of the product", path, imported)}
	case from == data && !slices.Contains(dataImports, imported):
		return []string{fmt.Sprintf("%s (data) imports %s: data packages are leaves, so that anything may import them", path, imported)}
	case to > from:
		return []string{fmt.Sprintf("%s (%v) imports %s (%v): imports go to the same or an earlier layer, so that what computes can be tested without what touches the kernel", path, from, imported, to)}
	}
	return nil
}

// within reports whether a package is another one or below it.
func within(path, parent string) bool { return path == parent || strings.HasPrefix(path, parent+"/") }

// layerOf returns the layer of a package. Those below internal/bpf are one program
// with its loader each, those below tools programs for developers.
func layerOf(path string) (layer, bool) {
	switch {
	case within(path, "internal/bpf"):
		return kernel, true
	case isTool(path):
		return front, true
	}
	l, ok := layers[path]
	return l, ok
}

func isTool(path string) bool { return strings.HasPrefix(path, "tools/") }

func whyForbidden(imp string) string {
	if reason := forbidden[imp]; reason != "" {
		return reason
	}
	for name, reason := range forbidden {
		if strings.HasSuffix(name, "/") && strings.HasPrefix(imp, name) {
			return reason
		}
	}
	return ""
}

// checkCalls reads the files of a data or pure package for forbidden functions.
func checkCalls(t *testing.T, p pkg) []string {
	t.Helper()
	if from, known := layerOf(p.path()); !known || from > pure {
		return nil
	}
	var problems []string
	for _, name := range p.GoFiles {
		src, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		found, err := forbiddenUses(p.path()+"/"+name, src)
		if err != nil {
			t.Fatal(err)
		}
		problems = append(problems, found...)
	}
	return problems
}

// forbiddenUses finds forbidden functions in one file, called or passed on, also
// where their package is imported under another name.
func forbiddenUses(name string, src []byte) ([]string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", name, err)
	}
	imported := map[string]string{}
	for _, spec := range file.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, fmt.Errorf("parse %s: import %s: %w", name, spec.Path.Value, err)
		}
		local := path[strings.LastIndex(path, "/")+1:]
		if spec.Name != nil {
			local = spec.Name.Name
		}
		if local == "." {
			return []string{fmt.Sprintf("%s imports all names of %s: its uses cannot be determined", name, path)}, nil
		}
		imported[local] = path
	}
	var problems []string
	ast.Inspect(file, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := selector.X.(*ast.Ident); ok {
			used := imported[x.Name] + "." + selector.Sel.Name
			if reason := whyForbiddenUse(imported[x.Name], selector.Sel.Name); reason != "" {
				problems = append(problems, fmt.Sprintf("%v uses %s: %s", files.Position(selector.Pos()), used, reason))
			}
		}
		return true
	})
	return problems, nil
}

func whyForbiddenUse(pkg, name string) string {
	if rule, ok := allowedUses[pkg]; ok && !rule.names.MatchString(name) {
		return rule.reason
	}
	return forbiddenCalls[pkg+"."+name]
}

// TestLayersRejects shows that each rule catches what it is there for.
func TestLayersRejects(t *testing.T) {
	for _, tt := range []struct {
		name string
		pkg  pkg
		want string // part of the only problem; empty for none
	}{
		{"allowed", pkg{ImportPath: module + "/internal/tune/apply", Imports: []string{"os", module + "/internal/tune", module + "/internal/tune/journal"}}, ""},
		{"netip is pure", pkg{ImportPath: module + "/internal/load", Imports: []string{"net/netip", "net/url"}}, ""},
		{"unknown package", pkg{ImportPath: module + "/internal/helpers"}, "has no layer"},
		{"bpf programs are known", pkg{ImportPath: module + "/internal/bpf/drops", Imports: []string{"github.com/cilium/ebpf"}}, ""},
		{"pure imports os", pkg{ImportPath: module + "/internal/diagnose", Imports: []string{"os"}}, "(pure) imports os: files"},
		{"pure imports a child of ebpf", pkg{ImportPath: module + "/internal/diagnose", Imports: []string{"github.com/cilium/ebpf/link"}}, "programs are loaded"},
		{"pure imports kernel", pkg{ImportPath: module + "/internal/lab", Imports: []string{module + "/internal/netns"}}, "(pure) imports internal/netns (kernel)"},
		{"kernel imports front", pkg{ImportPath: module + "/internal/collect", Imports: []string{module + "/internal/cli"}}, "(kernel) imports internal/cli (front)"},
		{"tune imports gateway", pkg{ImportPath: module + "/internal/tune/apply", Imports: []string{module + "/internal/gateway"}}, "handed in"},
		{"data imports pure", pkg{ImportPath: module + "/internal/snapshot", Imports: []string{module + "/internal/tune"}}, "are leaves"},
		{"an engine directly", pkg{ImportPath: module + "/internal/gateway/look", Imports: []string{module + "/internal/gateway/engine/netfilter"}}, "through internal/gateway/engine"},
		{"an engine among others", pkg{ImportPath: module + "/internal/gateway/engine", Imports: []string{module + "/internal/gateway/engine/netfilter"}}, ""},
		{"product imports a tool", pkg{ImportPath: module + "/internal/cli", Imports: []string{module + "/tools/bench"}}, "programs for developers"},
		{"a tool imports a tool", pkg{ImportPath: module + "/tools/benchcmp", Imports: []string{module + "/tools/bench"}}, ""},
		{"product imports testutil", pkg{ImportPath: module + "/internal/cli", Imports: []string{module + "/internal/testutil"}}, "outside of its tests"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			problems := checkImports(tt.pkg)
			if tt.want == "" {
				if len(problems) != 0 {
					t.Fatalf("unexpected: %q", problems)
				}
				return
			}
			if len(problems) != 1 || !strings.Contains(problems[0], tt.want) {
				t.Fatalf("got %q, want one with %q", problems, tt.want)
			}
		})
	}
}

func TestForbiddenUses(t *testing.T) {
	const src = `package x
import (
	clock "time"
	"example.org/time"
	"net"
)
var now = clock.Now
func f() { clock.Sleep(clock.Second); time.Now(); _ = clock.Unix(0, 0) }
func g(net.HardwareAddr) {}
func h() (net.Conn, error) { return net.Dial("tcp", "198.18.0.1:80") }
`
	got, err := forbiddenUses("x.go", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"x.go:7:11 uses time.Now: " + forbiddenCalls["time.Now"],
		"x.go:8:12 uses time.Sleep: " + forbiddenCalls["time.Sleep"],
		"x.go:10:11 uses net.Conn: " + allowedUses["net"].reason,
		"x.go:10:37 uses net.Dial: " + allowedUses["net"].reason,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestScriptsNamePackages: a package that moved is not left behind in a script that runs
// once in a night.
func TestScriptsNamePackages(t *testing.T) {
	files, err := filepath.Glob("../scripts/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, name := range append(files, "../.ci/run", "../Makefile") {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // a folder
		}
		for _, dir := range regexp.MustCompile(`\./(internal|tools|cmd)(/[a-z][a-z0-9_]*)+`).FindAllString(string(text), -1) {
			if _, err := os.Stat(filepath.Join("..", dir)); err != nil {
				t.Errorf("%s names %s: %v", name, dir, err)
			}
		}
	}
}
