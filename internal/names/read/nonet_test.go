package read

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAsksNoNetwork: names come from files, netlink and one socket of AF_UNIX. No function that asks a name server is
// used, here or in package names, and what dials does it at a path.
func TestAsksNoNetwork(t *testing.T) {
	allowed := map[string]bool{"net.Conn": true, "net.Dialer": true}
	sources, err := filepath.Glob("*.go")
	pure, errPure := filepath.Glob("../*.go")
	if err != nil || errPure != nil || len(sources) < 3 || len(pure) < 4 {
		t.Fatal(err, errPure, sources, pure)
	}
	dials := 0
	for _, name := range append(sources, pure...) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range []string{"LookupHost", "LookupAddr", "LookupIP", "LookupNetIP", "LookupCNAME", "Resolver", "exec.Command", "SOCK_DGRAM"} {
			if strings.Contains(string(text), call) {
				t.Errorf("%s uses %s", name, call)
			}
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "net" && !allowed["net."+n.Sel.Name] {
					t.Errorf("%s uses net.%s", name, n.Sel.Name)
				}
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && strings.HasPrefix(f.Sel.Name, "Dial") {
					if x, ok := f.X.(*ast.Ident); ok && x.Name == "socket" {
						return true // netlink
					}
					dials++
					if network, ok := n.Args[1].(*ast.BasicLit); !ok || network.Value != `"unix"` {
						t.Errorf("%s dials another network than unix", name)
					}
				}
			}
			return true
		})
	}
	if dials != 1 {
		t.Errorf("%d places dial", dials)
	}
}
