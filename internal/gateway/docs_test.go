package gateway

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// page is the first one to read, reference has every word of the file, verbs what is done with it.
const (
	page      = "../../docs/gateway.md"
	reference = "../../docs/gateway-reference.md"
	verbs     = "../../docs/gateway-verbs.md"
	words     = "../../docs/gateway-words.md"
)

func readDoc(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// examples are the page's files: what is indented by four and begins with "gateway:".
func examples(page string) (files []string) {
	var b strings.Builder
	take := func() {
		if strings.HasPrefix(b.String(), "gateway:\n") {
			files = append(files, b.String())
		}
		b.Reset()
	}
	for line := range strings.Lines(page) {
		if text, is := strings.CutPrefix(line, "    "); is {
			b.WriteString(text)
			continue
		}
		take()
	}
	take()
	return files
}

// Examples of the documentation can be taken as they are.
func TestPageExamples(t *testing.T) {
	files := slices.Concat(examples(readDoc(t, page)), examples(readDoc(t, reference)))
	if len(files) < 4 {
		t.Fatalf("the pages have %d examples", len(files))
	}
	for _, text := range files {
		if findings := check(t, text, Facts{}); len(findings) > 0 {
			t.Errorf("%s\n%s", text, strings.Join(found(text, findings), "\n"))
		}
	}
}

// beside reads what a file includes.
type beside struct{}

func (beside) Read(path string, _ int) ([]byte, error) { return os.ReadFile(path) }
func (beside) List(string) ([]string, error)           { return nil, errors.ErrUnsupported }

// The example files say nothing to doubt.
func TestExampleFiles(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no example files", err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := ParseWith(beside{}, filepath.ToSlash(name), text)
		if err != nil {
			t.Fatal(err)
		}
		findings := slices.DeleteFunc(checkFile(t, file, Facts{}), func(x Finding) bool { return x.Severity == Notice })
		if len(findings) > 0 {
			t.Errorf("%s\n%s", name, strings.Join(found(string(text), findings), "\n"))
		}
		if !strings.Contains(readDoc(t, page), "examples/"+filepath.Base(name)) {
			t.Errorf("%s is not named in %s", name, page)
		}
	}
}

// So can every rule that stands in its text.
func TestPageRules(t *testing.T) {
	rules := regexp.MustCompile("`((?:"+strings.Join(kindWords, "|")+"): \\{[^`]*\\})`").FindAllStringSubmatch(readDoc(t, page)+readDoc(t, reference)+readDoc(t, verbs)+readDoc(t, words), -1)
	if len(rules) < 20 {
		t.Fatalf("the pages have %d rules", len(rules))
	}
	for _, m := range rules {
		if strings.Contains(m[1], "…") || regexp.MustCompile(`: [AB]\b`).MatchString(m[1]) {
			continue // a pattern of import
		}
		text := inFile(m[1])
		if strings.Contains(m[1], "::") {
			text = inFile6(m[1])
		}
		if findings := check(t, text, Facts{}); len(findings) > 0 {
			t.Errorf("%s\n%s", m[1], strings.Join(found(text, findings), "\n"))
		}
	}
}

// The reference names every word of the language.
func TestPageWords(t *testing.T) {
	text := readDoc(t, reference)
	all := map[string]bool{}
	wordsOf(reflect.TypeFor[Config](), all)
	if len(all) < 30 {
		t.Fatalf("the language has %d words", len(all))
	}
	for word := range all {
		if !strings.Contains(text, "`"+word+"`") {
			t.Errorf("%s is not explained", word)
		}
	}
}

// wordsOf are the keys that a type is read from.
func wordsOf(t reflect.Type, into map[string]bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return
	}
	for i := range t.NumField() {
		f := t.Field(i)
		switch tag := f.Tag.Get("yaml"); tag {
		case "", "-":
			continue
		case ",inline":
		default:
			into[tag] = true
		}
		wordsOf(f.Type, into)
	}
}
