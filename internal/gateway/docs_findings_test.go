package gateway

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// documented are the findings on the page, with the severity that they have as a rule.
func documented(t *testing.T) map[string]Severity {
	t.Helper()
	all := map[string]Severity{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9-]+)` \\| (refused|warning|notice) \\|").FindAllStringSubmatch(readDoc(t, verbs), -1) {
		all[m[1]] = map[string]Severity{"refused": Refuse, "warning": Warn, "notice": Notice}[m[2]]
	}
	return all
}

// The page has every finding that check makes, and no other, by the sources. That those
// which tests provoke are there is seen to by the function check.
func TestPageFindings(t *testing.T) {
	files, err := filepath.Glob("check*.go")
	if err != nil {
		t.Fatal(err)
	}
	made := map[string][]Severity{}
	for _, f := range files {
		if !strings.HasSuffix(f, "_test.go") {
			findingsIn(t, f, made)
		}
	}
	page := documented(t)
	for id, severity := range page {
		if !slices.Contains(made[id], severity) {
			t.Errorf("the page has %s (%s), check makes it: %v", id, severity, made[id])
		}
	}
	for id := range made {
		if page[id] == "" {
			t.Errorf("the page does not have %s", id)
		}
	}
}

// findingsIn notes ids and severities by the calls and values that name them.
func findingsIn(t *testing.T, file string, made map[string][]Severity) {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		var parts []ast.Expr
		switch n := n.(type) {
		case *ast.CallExpr:
			if f, is := n.Fun.(*ast.SelectorExpr); is {
				parts = append([]ast.Expr{f.Sel}, n.Args...)
			}
		case *ast.CompositeLit:
			if f, is := n.Type.(*ast.Ident); is && f.Name == "Finding" {
				for _, e := range n.Elts {
					parts = append(parts, e.(*ast.KeyValueExpr).Value)
				}
			}
		}
		if id, severity := findingOf(parts); id != "" && severity != "" {
			made[id] = append(made[id], severity)
		}
		return true
	})
}

var kebab = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)+$`)

// findingOf is the first id among the parts, and the severity that one of them names:
// the function's own name (o.warn) or a constant.
func findingOf(parts []ast.Expr) (id string, severity Severity) {
	for _, p := range parts {
		switch p := p.(type) {
		case *ast.Ident:
			switch strings.ToLower(p.Name) {
			case "refuse":
				severity = Refuse
			case "warn":
				severity = Warn
			case "notice":
				severity = Notice
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(p.Value); err == nil && id == "" && kebab.MatchString(text) {
				id = text
			}
		}
	}
	return id, severity
}
