package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// writers are calls that change the host or its files, by the name of the package or of the method.
var writers = regexp.MustCompile(`^(` +
	`os\.(WriteFile|Create|CreateTemp|Mkdir|MkdirAll|MkdirTemp|Remove|RemoveAll|Rename|Link|Symlink|Chmod|Chown|Lchown|Truncate)` +
	`|unix\.(Mount|Unmount|Unshare|Rename|Renameat2?|Unlink|Unlinkat|Mkdirat|Kill|Reboot|InitModule|FinitModule|DeleteModule|Fsmount)` +
	`|netlink\.[A-Za-z0-9]+(Add|Del|Replace|Set[A-Za-z]*)` +
	`|nftables\.New` +
	`|link\.Attach(XDP|TCX|NetNs|Cgroup)` +
	`)$`)

// unasked are functions that call a writer without asking package permit, and why that is right. A name without a
// function stands for all of a file or folder.
var unasked = map[string]string{
	"internal/testutil":                           "is for tests",
	"internal/gateway/behaviour":                  "is for tests",
	"internal/lab/build":                          "is reached by Up, Hold.Start, Attach, Down, StartFill, InsertFill, CleanFills and InitMain, which ask",
	"internal/bpf/pktgen/tables.go anchor.attach": "is in a namespace that netns.New made, which asks",
	"internal/load/rfc9693/trial":                 "is reached by OpenLab and pktgen, which ask",
	"internal/load/run/sys.go":                    "is about the process's own memory and threads, of loads, which ask",

	"internal/tune/journal":                               "is reached by Lock and LockExisting, which make a trusted folder or open a lock: package disk asks",
	"internal/tune/apply/guard.go":                        "the guard, which asks at its start, and its own name",
	"internal/gateway/engine/store.go Store.collectSets":  "is reached by Collect, which asks",
	"internal/gateway/engine/store.go Store.collectSeals": "is reached by Collect, which asks",
	"internal/gateway/engine/store.go Store.Claim":        "is reached after create, which asks",
	"internal/gateway/apply/routing.go":                   "is reached by Write, which asks",
	"internal/bpf/plane/attach.go":                        "is reached by Attach, Detach and Remove, which ask",
	"internal/bpf/plane/sweep.go":                         "is reached by Sweep, which asks",
	"internal/bpf/plane/pins.go":                          "is reached by alone, Attach and mountOwn, which ask",
	"internal/natlog/send/spool.go Spool.repair":          "is reached by open, which asks",
	"internal/record":                                     "is reached by Run, whose makeDir asks, and Mark, which makes a file by package disk",

	"internal/bpf/capture/interfaces.go": "attaches a program that only observes",

	"internal/disk/disk.go beside":            "is reached by begin, MayReplace, Open and CreateLocked, which ask",
	"internal/disk/disk.go RemoveLeftovers":   "is reached with a journal's lock, which asks",
	"internal/disk/update.go Update":          "renames for put, which asks",
	"internal/disk/system_linux.go renameNew": "renames for put, which asks",
	"internal/disk/system_other.go renameNew": "renames for put, which asks",

	"internal/disk/disk.go Replace":       "renames for put, which asks",
	"internal/disk/disk.go Begin":         "renames for begin, which asks",
	"internal/disk/disk.go Pending.Abort": "removes what begin made, which asks",

	"internal/table/store/local.go directory.end": "removes what make made, which asks",

	"internal/netns/offload.go openQueues": "a sysfs of its own for ReceiveOn; writeAt asks",

	"internal/doctor/all.go":                 "a file without a name, for the run",
	"internal/cli/from.go":                   "a file without a name, for the run",
	"internal/cli/env.go writeSpecial":       "is reached by writeWhole, after destination, which asks",
	"internal/cli/gateway_edit.go":           "gateway edit is refused; its copy is a temporary file",
	"internal/cli/lab_run.go labRun.makeDir": "lab run is refused",
}

// TestWritersAsk: whatever changes the host asks package permit in the same function, or is listed with the reason.
func TestWritersAsk(t *testing.T) {
	used := map[string]bool{}
	found := 0
	for _, dir := range []string{".", "../cmd"} {
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			name := strings.TrimPrefix(filepath.ToSlash(filepath.Join("internal", path)), "internal/../")
			calls := writersOf(t, path)
			found += len(calls)
			for _, c := range calls {
				if key := excuse(name, c.function); key != "" {
					used[key] = true
				} else {
					t.Errorf("%s: %s calls %s and does not ask package permit: call permit.Change or permit.File there, or give the reason in unasked", name, c.function, c.writer)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 20 {
		t.Errorf("only %d calls of writers were found: the search is broken", found)
	}
	for key := range unasked {
		if !used[key] {
			t.Errorf("unasked has %s, which calls no writer any more", key)
		}
	}
}

// excuse returns the entry of unasked that holds for a function; the longest counts.
func excuse(file, function string) (key string) {
	for name := range unasked {
		of, fn, only := strings.Cut(name, " ")
		if (file == of || strings.HasPrefix(file, of+"/")) && (!only || fn == function) && len(name) > len(key) {
			key = name
		}
	}
	return key
}

type writerCall struct{ function, writer string }

// writersOf returns the calls of writers in functions that do not ask.
func writersOf(t *testing.T, path string) (calls []writerCall) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range file.Decls {
		asks, found := false, []writerCall{}
		ast.Inspect(decl, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && opensToWrite(call) {
				found = append(found, writerCall{functionName(decl), "OpenFile"})
			}
			selector, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := selector.X.(*ast.Ident); ok {
				call := x.Name + "." + selector.Sel.Name
				asks = asks || x.Name == "permit"
				if writers.MatchString(call) {
					found = append(found, writerCall{functionName(decl), call})
				}
			}
			return true
		})
		if !asks {
			calls = append(calls, found...)
		}
	}
	return calls
}

// writing are the flags of open(2) with which a file is changed.
var writing = regexp.MustCompile(`^O_(WRONLY|RDWR|CREAT|CREATE|TRUNC|APPEND)$`)

// opensToWrite reports whether a call opens a file with such a flag.
func opensToWrite(call *ast.CallExpr) (writes bool) {
	opener, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !strings.HasPrefix(opener.Sel.Name, "Open") {
		return false
	}
	for _, arg := range call.Args {
		ast.Inspect(arg, func(n ast.Node) bool {
			if flag, ok := n.(*ast.SelectorExpr); ok && writing.MatchString(flag.Sel.Name) {
				writes = true
			}
			return true
		})
	}
	return writes
}

// functionName is "Type.method" or "function".
func functionName(decl ast.Decl) string {
	f, ok := decl.(*ast.FuncDecl)
	if !ok {
		return "a variable"
	}
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return f.Name.Name
	}
	of := f.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if name, ok := of.(*ast.Ident); ok {
		return name.Name + "." + f.Name.Name
	}
	return f.Name.Name
}
