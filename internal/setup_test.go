package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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
	for list, function := range map[string]string{"test_programs": "NeedProgram", "nightly_programs": "NeedNightlyProgram"} {
		installed := installedPrograms(t, script, list)
		needed := neededPrograms(t, "..", function)
		if len(needed) == 0 {
			t.Fatalf("found no call of testutil.%s: the search is broken", function)
		}
		for program, place := range needed {
			if !installed[program] {
				t.Errorf("%s needs the program %s, which is not in scripts/setup's %s", place, program, list)
			}
		}
	}
}

// installedPrograms are those of one of the script's lists.
func installedPrograms(t *testing.T, script []byte, name string) map[string]bool {
	t.Helper()
	list := regexp.MustCompile(`(?m)^` + name + `=\((.*)\)$`).FindSubmatch(script)
	if list == nil {
		t.Fatalf("scripts/setup has no list %s=(…)", name)
	}
	installed := map[string]bool{}
	for _, program := range strings.Fields(string(list[1])) {
		installed[program] = true
		if !regexp.MustCompile(`\[` + regexp.QuoteMeta(program) + `\]=`).Match(script) {
			t.Errorf("scripts/setup installs %s and does not know its package", program)
		}
	}
	return installed
}

// neededPrograms maps the programs that tests below root ask for by name, by a
// function of testutil, to the place of one such call.
func neededPrograms(t *testing.T, root, function string) map[string]string {
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
		case strings.HasSuffix(path, ".txtar") && function == "NeedProgram":
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
			if name, ok := programArgument(n, function); ok {
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
func programArgument(n ast.Node, name string) (string, bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 2 {
		return "", false
	}
	function, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || function.Sel.Name != name {
		return "", false
	}
	literal, ok := call.Args[1].(*ast.BasicLit)
	if !ok {
		return "", false
	}
	program, err := strconv.Unquote(literal.Value)
	return program, err == nil
}

// TestNightlyPartsAreListed: CONTRIBUTING says of each part of the nightly tests what it is.
func TestNightlyPartsAreListed(t *testing.T) {
	cmd := exec.Command("../scripts/nightly")
	cmd.Env = append(os.Environ(), "PART=nothing")
	out, err := cmd.CombinedOutput()
	_, list, found := strings.Cut(string(out), "there are ")
	if err == nil || cmd.ProcessState.ExitCode() != 2 || !found {
		t.Fatalf("a part that is not there: %v, %s", err, out)
	}
	text, err := os.ReadFile("../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| part | what |")
	table, _, _ = strings.Cut(table, "\n\n")
	var listed []string
	for _, row := range strings.Split(table, "\n") {
		cells := strings.Split(row, "|")
		for _, part := range regexp.MustCompile("`([a-z0-9.-]+)`").FindAllStringSubmatch(cells[min(1, len(cells)-1)], -1) {
			listed = append(listed, part[1])
		}
	}
	if want := strings.Fields(list); !slices.Equal(listed, want) {
		t.Errorf("CONTRIBUTING.md has the parts %v, scripts/nightly %v", listed, want)
	}
}
