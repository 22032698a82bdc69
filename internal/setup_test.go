package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestSetupInstallsWhatTestsNeed: `sudo make test` lets no test skip, so every
// program that a test asks for must be one that scripts/setup installs.
func TestSetupInstallsWhatTestsNeed(t *testing.T) {
	script, err := os.ReadFile("../scripts/setup")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?m)^test_programs=\((.*)\)$`).FindSubmatch(script)
	if list == nil {
		t.Fatal("scripts/setup has no list test_programs=(…)")
	}
	installed := map[string]bool{}
	for _, program := range strings.Fields(string(list[1])) {
		installed[program] = true
		if !regexp.MustCompile(`\[` + regexp.QuoteMeta(program) + `\]=`).Match(script) {
			t.Errorf("scripts/setup installs %s and does not know its package", program)
		}
	}
	needed := neededPrograms(t, "..")
	if len(needed) == 0 {
		t.Fatal("found no call of testutil.NeedProgram: the search is broken")
	}
	for program, place := range needed {
		if !installed[program] {
			t.Errorf("%s needs the program %s, which scripts/setup does not install for tests", place, program)
		}
	}
}

// neededPrograms maps the programs that tests below root ask for by name to the
// place of one such call.
func neededPrograms(t *testing.T, root string) map[string]string {
	t.Helper()
	needed := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		switch {
		case d.IsDir():
			return nil
		case strings.HasSuffix(path, ".txtar"):
			return neededByScript(path, needed)
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if name, ok := programArgument(n); ok {
				needed[name] = files.Position(n.Pos()).String()
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return needed
}

// neededByScript adds the words of a script's lines "needs root nft …".
func neededByScript(path string, needed map[string]string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] != "needs" {
			continue
		}
		for _, word := range words[1:] {
			if word != "root" {
				needed[word] = path
			}
		}
	}
	return nil
}

// programArgument is the name in testutil.NeedProgram(t, "name").
func programArgument(n ast.Node) (string, bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 2 {
		return "", false
	}
	function, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || function.Sel.Name != "NeedProgram" {
		return "", false
	}
	literal, ok := call.Args[1].(*ast.BasicLit)
	if !ok {
		return "", false
	}
	name, err := strconv.Unquote(literal.Value)
	return name, err == nil
}
